"""Frames as protobuf has them."""

from tdcd.sites.messages.frames import Frame, Header, TensorHeader
from tdcd.sites.transport.wire import tdcd_pb2 as wire


def to_wire(frame: Frame) -> wire.Frame:
    """Return a frame as protobuf has it."""
    if frame.header is None:
        return wire.Frame(chunk=frame.chunk)
    head = frame.header
    tensors = [wire.TensorHeader(name=one.name, dtype=one.dtype, shape=one.shape) for one in head.tensors]
    header = wire.Header(
        job=head.job,
        epoch=head.epoch,
        round=head.round,
        attempt=head.attempt,
        step=head.step,
        kind=head.kind,
        facts=head.facts,
        tensors=tensors,
    )
    return wire.Frame(header=header, chunk=frame.chunk)


def from_wire(frame: wire.Frame) -> Frame:
    """Return a frame that came from the network."""
    if not frame.HasField("header"):
        return Frame(None, frame.chunk)
    head = frame.header
    tensors = tuple(TensorHeader(one.name, one.dtype, tuple(one.shape)) for one in head.tensors)
    header = Header(head.job, head.epoch, head.round, head.attempt, head.step, head.kind, head.facts, tensors)
    return Frame(header, frame.chunk)
