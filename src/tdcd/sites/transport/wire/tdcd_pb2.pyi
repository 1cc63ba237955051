from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Frame(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: Header
    chunk: bytes
    def __init__(self, header: _Optional[_Union[Header, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class Header(_message.Message):
    __slots__ = ("job", "epoch", "round", "attempt", "kind", "facts", "tensors", "step")
    JOB_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    job: str
    epoch: int
    round: int
    attempt: int
    kind: str
    facts: str
    tensors: _containers.RepeatedCompositeFieldContainer[TensorHeader]
    step: int
    def __init__(self, job: _Optional[str] = ..., epoch: _Optional[int] = ..., round: _Optional[int] = ..., attempt: _Optional[int] = ..., kind: _Optional[str] = ..., facts: _Optional[str] = ..., tensors: _Optional[_Iterable[_Union[TensorHeader, _Mapping]]] = ..., step: _Optional[int] = ...) -> None: ...

class TensorHeader(_message.Message):
    __slots__ = ("name", "dtype", "shape")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "version", "silo", "job", "incarnation", "epoch", "topic", "brought")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SILO_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    BROUGHT_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    version: str
    silo: str
    job: str
    incarnation: str
    epoch: int
    topic: str
    brought: str
    def __init__(self, protocol: _Optional[int] = ..., version: _Optional[str] = ..., silo: _Optional[str] = ..., job: _Optional[str] = ..., incarnation: _Optional[str] = ..., epoch: _Optional[int] = ..., topic: _Optional[str] = ..., brought: _Optional[str] = ...) -> None: ...

class Opening(_message.Message):
    __slots__ = ("epoch", "brought")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BROUGHT_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    brought: str
    def __init__(self, epoch: _Optional[int] = ..., brought: _Optional[str] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("refused",)
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    refused: str
    def __init__(self, refused: _Optional[str] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("silo", "job", "stage", "round", "rounds", "rounds_per_second", "clients", "peers", "bytes_sent", "bytes_received", "last_error", "evaluation", "seconds", "version", "evaluation_bytes", "prediction_requests", "predicted", "prediction_errors")
    SILO_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    BYTES_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_BYTES_FIELD_NUMBER: _ClassVar[int]
    PREDICTION_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_FIELD_NUMBER: _ClassVar[int]
    PREDICTION_ERRORS_FIELD_NUMBER: _ClassVar[int]
    silo: str
    job: str
    stage: str
    round: int
    rounds: int
    rounds_per_second: float
    clients: _containers.RepeatedCompositeFieldContainer[ClientStatus]
    peers: _containers.RepeatedCompositeFieldContainer[PeerStatus]
    bytes_sent: int
    bytes_received: int
    last_error: str
    evaluation: str
    seconds: float
    version: str
    evaluation_bytes: int
    prediction_requests: int
    predicted: int
    prediction_errors: int
    def __init__(self, silo: _Optional[str] = ..., job: _Optional[str] = ..., stage: _Optional[str] = ..., round: _Optional[int] = ..., rounds: _Optional[int] = ..., rounds_per_second: _Optional[float] = ..., clients: _Optional[_Iterable[_Union[ClientStatus, _Mapping]]] = ..., peers: _Optional[_Iterable[_Union[PeerStatus, _Mapping]]] = ..., bytes_sent: _Optional[int] = ..., bytes_received: _Optional[int] = ..., last_error: _Optional[str] = ..., evaluation: _Optional[str] = ..., seconds: _Optional[float] = ..., version: _Optional[str] = ..., evaluation_bytes: _Optional[int] = ..., prediction_requests: _Optional[int] = ..., predicted: _Optional[int] = ..., prediction_errors: _Optional[int] = ...) -> None: ...

class ClientStatus(_message.Message):
    __slots__ = ("name", "present", "rows", "left_out", "seconds_since_seen", "serves")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PRESENT_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    SECONDS_SINCE_SEEN_FIELD_NUMBER: _ClassVar[int]
    SERVES_FIELD_NUMBER: _ClassVar[int]
    name: str
    present: bool
    rows: int
    left_out: int
    seconds_since_seen: float
    serves: int
    def __init__(self, name: _Optional[str] = ..., present: _Optional[bool] = ..., rows: _Optional[int] = ..., left_out: _Optional[int] = ..., seconds_since_seen: _Optional[float] = ..., serves: _Optional[int] = ...) -> None: ...

class PeerStatus(_message.Message):
    __slots__ = ("silo", "address", "present")
    SILO_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PRESENT_FIELD_NUMBER: _ClassVar[int]
    silo: str
    address: str
    present: bool
    def __init__(self, silo: _Optional[str] = ..., address: _Optional[str] = ..., present: _Optional[bool] = ...) -> None: ...
