# SPDX-License-Identifier: Apache-2.0
"""Models: one small protocol, and one package per provider. No code above this package knows a provider.

base        the protocol: a model is given a request and a sink, and pushes what it receives
common/     the parts that the models of all providers are composed of
openai/     OpenAI's models
scripted    a model that plays a script, for offline work
"""
