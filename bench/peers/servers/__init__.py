# SPDX-License-Identifier: Apache-2.0
"""One agent for each framework's own server, started by that server's own command. PEERS_URL names the provider."""
