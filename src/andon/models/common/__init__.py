# SPDX-License-Identifier: Apache-2.0
"""The parts that the models of all providers are composed of. Nothing here knows a provider.

    sdk         a provider's SDK: imported at the first request; if it is missing, the error names the extra
    setup       keys, addresses and options, checked before a run begins
    clients     one client per event loop and settings, opened in a thread, closed with the loop
    http        what the HTTP library below the SDKs needs: certificates, TLS handshakes, joined chunks
    stream      an answer, from the first byte to the last; where a cancel closes the connection
    sse         server-sent events, from bytes to payloads
    errors      a provider's errors as ours, by a table of its codes; sent secrets are removed
    secrets     which values of a request are secret, and how they are removed from texts
    seals       what must be sent back with a block of reasoning
    history     which messages are sent: turns that a model declined are not
    media       images and files: what a provider takes, and base64
    schema      JSON schemas with every object closed, or as an instruction

A provider's package imports from here, and never from another provider's. CONTRIBUTING.md lists what it needs.
"""
