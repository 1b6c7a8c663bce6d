# SPDX-License-Identifier: Apache-2.0
"""Amazon Bedrock's models, behind its Converse interface (ConverseStream), on aiobotocore.

    model       the model, and its options
    history     messages as Converse takes them
    media       images and documents
    schema      structured output
    family      what is known of a model by its id
    endpoint    where requests go, and how the bytes of an answer are reached
    frames      event streams of AWS, from bytes to events
    answer      an answer, from its events
    clients     how a client is made: region, credentials, address
    errors      what Bedrock's codes mean, and how botocore reports errors

Everything else is in `models/common`. The SDK is imported at the first request, not here.
"""

from andon.models.bedrock.model import Bedrock

__all__ = ["Bedrock"]
