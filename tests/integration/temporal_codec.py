"""A data converter that makes payloads unreadable, as users who encrypt have one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from temporalio.api.common.v1 import Payload
from temporalio.converter import DataConverter, PayloadCodec


class Flip(PayloadCodec):
    """Turns every bit around."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [
            Payload(
                metadata={"encoding": b"binary/flipped"}, data=bytes(255 - byte for byte in one.SerializeToString())
            )
            for one in payloads
        ]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [
            Payload.FromString(bytes(255 - byte for byte in one.data))
            if one.metadata.get("encoding") == b"binary/flipped"
            else one
            for one in payloads
        ]


converter = dataclasses.replace(DataConverter.default, payload_codec=Flip())
