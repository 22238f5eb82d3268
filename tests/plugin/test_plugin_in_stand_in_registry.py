# SPDX-License-Identifier: Apache-2.0
"""The compiled plugin, driven by a stand-in for TensorRT's registry; needs no GPU."""

from __future__ import annotations

import ctypes
import itertools
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch

NAMESPACE = b"specprefill"
BUILD_PHASE, RUNTIME_PHASE = 0, 1
FLOAT, HALF, INT8, INT32, BOOL, UINT8, FP8, BF16, INT64, INT4 = range(10)
INT32_FIELD, INT64_FIELD, FLOAT_FIELD = 5, 10, 1
LINEAR = 0
FORMATS = range(13)
ANY_SIZE = -1

FIELDS = {
    "num_q_heads": 8,
    "num_kv_heads": 2,
    "head_size": 64,
    "rotary_dim": 32,
    "rotary_style": 0,
    "field_version": 1,
}
WIDTH = (8 + 2 * 2) * 64


class Tensor(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int32),
        ("format", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("sizes", ctypes.c_int64 * 4),
    )


def tensor(dtype: int, *sizes: int, layout: int = LINEAR) -> Tensor:
    return Tensor(dtype, layout, len(sizes), (ctypes.c_int64 * 4)(*sizes))


def texts(names: ctypes.Array[ctypes.c_char_p], count: int) -> list[str]:
    return [str(name, "ascii") for name in list(names)[:count] if name]


def good_tensors(tokens: int = 5, dtype: int = HALF) -> list[Tensor]:
    return [
        tensor(dtype, tokens, WIDTH),
        tensor(INT32, tokens),
        tensor(FLOAT, 1024, 32),
        tensor(dtype, tokens, WIDTH),
    ]


class StandIn:
    """Typed calls into stand_in_registry.cpp."""

    def __init__(self, library: ctypes.CDLL, plugin_library: ctypes.CDLL) -> None:
        self.library = library
        self.plugin_library = plugin_library
        for name in ("create", "create_from_nothing", "serialise_and_recreate", "clone"):
            getattr(library, f"stand_in_{name}").restype = ctypes.c_void_p
        library.stand_in_attach_to_context.restype = ctypes.c_void_p
        library.stand_in_timing_cache_id.restype = ctypes.c_char_p

    def create_from(
        self, fields: Sequence[tuple[str | None, int]], phase: int = BUILD_PHASE, **changes: object
    ) -> int | None:
        count = len(fields)
        types = changes.get("types", [INT32_FIELD] * count)
        lengths = changes.get("lengths", [1] * count)
        numbers = (ctypes.c_int64 * count)(*(value for _, value in fields))
        addresses = [ctypes.addressof(numbers) + 8 * index for index in range(count)]
        plugin: int | None = self.library.stand_in_create(
            NAMESPACE,
            phase,
            count,
            (ctypes.c_char_p * count)(*(name.encode() if name else None for name, _ in fields)),
            (ctypes.c_int32 * count)(*types),  # type: ignore[misc]
            (ctypes.c_int32 * count)(*lengths),  # type: ignore[misc]
            (ctypes.c_void_p * count)(*changes.get("addresses", addresses)),  # type: ignore[misc]
        )
        return plugin

    def create(self, **changes: int) -> int | None:
        return self.create_from(list((FIELDS | changes).items()))

    def call(self, function: str, plugin: int, *arguments: object) -> int:
        result: int = getattr(self.library, f"stand_in_{function}")(
            ctypes.c_void_p(plugin), *arguments
        )
        return result

    def with_tensors(
        self, function: str, plugin: int, tensors: list[Tensor], inputs: int = 3
    ) -> int:
        array = (Tensor * len(tensors))(*tensors)
        return self.call(function, plugin, array, inputs, len(tensors) - inputs)

    def serialised_fields(self, plugin: int) -> dict[str, int]:
        names = (ctypes.c_char_p * 16)()
        values = (ctypes.c_int32 * 16)()
        count = self.call("serialised_fields", plugin, names, values)
        return dict(zip(texts(names, count), values, strict=False))


@pytest.fixture(scope="module")
def stand_in(stand_in_library: Path, plugin_library: Path) -> StandIn:
    mapped = Path("/proc/self/maps").read_text()
    if stand_in_library.name in mapped and str(stand_in_library) not in mapped:
        pytest.skip("a real TensorRT is already loaded in this process")
    library = ctypes.CDLL(str(stand_in_library))
    assert library.stand_in_registered_creators() == 0
    return StandIn(library, ctypes.CDLL(str(plugin_library), mode=ctypes.RTLD_GLOBAL))


@pytest.fixture
def plugin(stand_in: StandIn) -> Iterator[int]:
    created = stand_in.create()
    assert created
    yield created
    stand_in.call("destroy", created)


def test_needs_tensorrt_by_soname_and_has_no_run_path(
    plugin_library: Path, tensorrt_major: int
) -> None:
    dynamic = subprocess.run(
        ["readelf", "-d", str(plugin_library)], capture_output=True, text=True, check=True
    ).stdout
    assert f"(NEEDED)             Shared library: [libnvinfer.so.{tensorrt_major}]" in dynamic
    assert "libcudart" not in dynamic
    assert "RPATH" not in dynamic
    assert "RUNPATH" not in dynamic
    assert "NODELETE" in dynamic


def test_exports_only_its_entry_points(
    plugin_library: Path, exported_symbols: Callable[[Path], list[str]]
) -> None:
    assert sorted(exported_symbols(plugin_library)) == [
        "explicit_rotary_launch",
        "explicit_rotary_register",
        "explicit_rotary_tensorrt_major",
    ]


def test_loading_registers_once_and_again_is_harmless(
    stand_in: StandIn, plugin_library: Path, tensorrt_major: int
) -> None:
    library = stand_in.library
    calls_at_load = library.stand_in_registration_calls()
    assert library.stand_in_has_creator(b"ExplicitRotary", b"1", NAMESPACE)
    assert not library.stand_in_has_creator(b"ExplicitRotary", b"1", b"")
    assert not library.stand_in_has_creator(b"ExplicitRotary", b"2", NAMESPACE)
    ctypes.CDLL(str(plugin_library))
    assert stand_in.plugin_library.explicit_rotary_register() == 0
    assert library.stand_in_registered_creators() == 1
    assert library.stand_in_registration_calls() == calls_at_load
    assert stand_in.plugin_library.explicit_rotary_tensorrt_major() == tensorrt_major


def test_a_second_copy_of_the_library_does_not_register_again(
    stand_in: StandIn, plugin_library: Path, tmp_path: Path
) -> None:
    copy = tmp_path / plugin_library.name
    copy.write_bytes(plugin_library.read_bytes())
    ctypes.CDLL(str(copy))
    assert stand_in.library.stand_in_registered_creators() == 1


def test_registering_after_the_creator_is_gone_and_when_refused(
    stand_in: StandIn, capfd: pytest.CaptureFixture[str]
) -> None:
    register = stand_in.plugin_library.explicit_rotary_register
    try:
        stand_in.library.stand_in_forget_creators(1)
        assert register() == -1
        assert "refused the creator" in capfd.readouterr().err
    finally:
        stand_in.library.stand_in_forget_creators(0)
        assert register() == 1
    assert register() == 0


def test_field_names(stand_in: StandIn) -> None:
    names = (ctypes.c_char_p * 16)()
    types = (ctypes.c_int32 * 16)()
    lengths = (ctypes.c_int32 * 16)()
    count = stand_in.library.stand_in_field_names(NAMESPACE, names, types, lengths)
    assert texts(names, count) == list(FIELDS)
    assert list(types[:count]) == [INT32_FIELD] * count
    assert list(lengths[:count]) == [1] * count


def test_identity_and_constants(stand_in: StandIn, plugin: int) -> None:
    name, version, namespace = ctypes.c_char_p(), ctypes.c_char_p(), ctypes.c_char_p()
    references = [ctypes.byref(text) for text in (name, version, namespace)]
    assert stand_in.call("identity", plugin, *references) == 0
    assert (name.value, version.value, namespace.value) == (b"ExplicitRotary", b"1", NAMESPACE)
    assert stand_in.call("output_count", plugin) == 1
    assert stand_in.call("workspace_and_tactics", plugin) == 0


def test_timing_cache_id_tells_plugins_apart(stand_in: StandIn) -> None:
    changes = [
        {},
        {"num_q_heads": 9},
        {"num_kv_heads": 1},
        {"head_size": 66},
        {"rotary_dim": 30},
    ]
    identifiers = set()
    for change in changes:
        created = stand_in.create(**change)
        assert created
        identifiers.add(stand_in.call("timing_cache_id", created))
        stand_in.call("destroy", created)
    assert len(identifiers) == len(changes)


@pytest.mark.parametrize("phase", [BUILD_PHASE, RUNTIME_PHASE])
def test_fields_in_any_order(stand_in: StandIn, phase: int) -> None:
    for fields in (list(FIELDS.items()), list(reversed(FIELDS.items()))):
        created = stand_in.create_from(fields, phase)
        assert created
        assert stand_in.serialised_fields(created) == FIELDS
        stand_in.call("destroy", created)


@pytest.mark.parametrize("missing", FIELDS)
def test_every_field_is_required(
    stand_in: StandIn, missing: str, capfd: pytest.CaptureFixture[str]
) -> None:
    fields = [field for field in FIELDS.items() if field[0] != missing]
    assert stand_in.create_from(fields) is None
    assert f"[ExplicitRotary] error: layer 'layer': field '{missing}' is missing" in (
        capfd.readouterr().err
    )


@pytest.mark.parametrize("repeated", FIELDS)
def test_duplicate_fields_are_refused(
    stand_in: StandIn, repeated: str, capfd: pytest.CaptureFixture[str]
) -> None:
    fields = [*FIELDS.items(), (repeated, FIELDS[repeated])]
    assert stand_in.create_from(fields) is None
    assert f"field '{repeated}' is given twice" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["scale", "", "num_q_head", "NUM_Q_HEADS", None])
def test_unknown_fields_are_refused(
    stand_in: StandIn, name: str | None, capfd: pytest.CaptureFixture[str]
) -> None:
    assert stand_in.create_from([*FIELDS.items(), (name, 1)]) is None
    assert "unknown field" in capfd.readouterr().err


def test_no_fields_at_all_are_refused(stand_in: StandIn, capfd: pytest.CaptureFixture[str]) -> None:
    assert stand_in.create_from([]) is None
    assert stand_in.library.stand_in_create_from_nothing(NAMESPACE) is None
    assert "no fields were given" in capfd.readouterr().err


@pytest.mark.parametrize("wrong", range(len(FIELDS)))
def test_fields_that_are_not_one_int32_are_refused(
    stand_in: StandIn, wrong: int, capfd: pytest.CaptureFixture[str]
) -> None:
    fields = list(FIELDS.items())
    count = len(fields)
    for bad_type in (INT64_FIELD, FLOAT_FIELD):
        types = [bad_type if index == wrong else INT32_FIELD for index in range(count)]
        assert stand_in.create_from(fields, types=types) is None
    lengths = [2 if index == wrong else 1 for index in range(count)]
    assert stand_in.create_from(fields, lengths=lengths) is None
    number = ctypes.c_int64(1)
    addresses = [None if index == wrong else ctypes.addressof(number) for index in range(count)]
    assert stand_in.create_from(fields, addresses=addresses) is None
    assert capfd.readouterr().err.count(f"field '{fields[wrong][0]}' must be one INT32") == 4


@pytest.mark.parametrize(
    "changes",
    [
        {"num_q_heads": 0},
        {"num_q_heads": -1},
        {"num_kv_heads": 0},
        {"head_size": 0},
        {"head_size": 31},
        {"head_size": 2**30},
        {"num_q_heads": 2**31 - 1, "num_kv_heads": 2**31 - 1},
        {"rotary_dim": 0},
        {"rotary_dim": 31},
        {"rotary_dim": 66},
        {"rotary_dim": -2},
        {"rotary_style": 1},
        {"rotary_style": -1},
        {"field_version": 0},
        {"field_version": 2},
    ],
    ids=str,
)
def test_values_out_of_range_are_refused(
    stand_in: StandIn, changes: dict[str, int], capfd: pytest.CaptureFixture[str]
) -> None:
    assert stand_in.create(**changes) is None
    assert "[ExplicitRotary] error: layer 'layer'" in capfd.readouterr().err


def test_serialise_and_recreate(stand_in: StandIn) -> None:
    fields = {"num_q_heads": 3, "num_kv_heads": 1, "head_size": 20, "rotary_dim": 6}
    created = stand_in.create(**fields)
    assert created
    recreated = stand_in.library.stand_in_serialise_and_recreate(
        NAMESPACE, ctypes.c_void_p(created)
    )
    assert recreated
    assert stand_in.serialised_fields(recreated) == FIELDS | fields
    stand_in.call("destroy", recreated)


@pytest.mark.parametrize("function", ["stand_in_clone", "stand_in_attach_to_context"])
def test_clones_outlive_the_original(stand_in: StandIn, function: str) -> None:
    original = stand_in.create(num_q_heads=5)
    assert original
    clone = getattr(stand_in.library, function)(ctypes.c_void_p(original))
    assert clone
    assert clone != original
    stand_in.call("destroy", original)
    assert stand_in.serialised_fields(clone) == FIELDS | {"num_q_heads": 5}
    stand_in.call("destroy", clone)


def test_every_combination_of_types(stand_in: StandIn, plugin: int) -> None:
    """TensorRT asks from left to right and may only rely on what it asked before."""
    supported = []
    for types in itertools.product(range(10), repeat=4):
        tensors = [tensor(dtype, 1) for dtype in types]
        if all(
            stand_in.call("supports", plugin, position, (Tensor * 4)(*tensors), 3, 1)
            for position in range(4)
        ):
            supported.append(types)
    assert supported == [(HALF, INT32, FLOAT, HALF), (BF16, INT32, FLOAT, BF16)]


def test_only_the_linear_format(stand_in: StandIn, plugin: int) -> None:
    for position, layout in itertools.product(range(4), FORMATS):
        tensors = good_tensors()
        tensors[position].format = layout
        supported = stand_in.call("supports", plugin, position, (Tensor * 4)(*tensors), 3, 1)
        assert bool(supported) == (layout == LINEAR), (position, layout)


def test_a_position_does_not_look_at_later_tensors(stand_in: StandIn, plugin: int) -> None:
    garbage = tensor(99, 1, layout=99)
    for position in range(4):
        tensors = good_tensors()
        for later in range(position + 1, 4):
            tensors[later] = garbage
        assert stand_in.call("supports", plugin, position, (Tensor * 4)(*tensors), 3, 1)


@pytest.mark.parametrize("dtype", [HALF, BF16])
def test_output_type_and_shape_follow_qkv(stand_in: StandIn, plugin: int, dtype: int) -> None:
    array = (Tensor * 4)(*good_tensors(dtype=dtype))
    output_type = ctypes.c_int32(-1)
    assert stand_in.call("output_type", plugin, array, 3, ctypes.byref(output_type)) == 0
    assert output_type.value == dtype
    assert stand_in.call("output_shape_is_that_of_qkv", plugin, array, 3) == 0


def test_wrong_numbers_of_tensors_and_wrong_ranks(
    stand_in: StandIn, plugin: int, capfd: pytest.CaptureFixture[str]
) -> None:
    array = (Tensor * 4)(*good_tensors())
    ignored = ctypes.c_int32()
    for inputs in (0, 1, 2, 4):
        assert stand_in.call("output_type", plugin, array, inputs, ctypes.byref(ignored)) > 0
        assert stand_in.call("output_shape_is_that_of_qkv", plugin, array, inputs) > 0
        assert not stand_in.call("supports", plugin, 0, array, inputs, 4 - inputs)
        assert stand_in.with_tensors("configure", plugin, good_tensors(), inputs) > 0
        assert stand_in.with_tensors("change_shape", plugin, good_tensors(), inputs) > 0
    for position, rank in itertools.product(range(3), (0, 1, 2, 3)):
        tensors = good_tensors()
        right = tensors[position].rank == rank
        tensors[position].rank = rank
        status = stand_in.call("output_shape_is_that_of_qkv", plugin, (Tensor * 4)(*tensors), 3)
        assert (status == 0) == right, (position, rank)
    assert "[ExplicitRotary] error" in capfd.readouterr().err


@pytest.mark.parametrize("function", ["configure", "change_shape"])
@pytest.mark.parametrize("tokens", [0, 1, 5, 131072])
def test_matching_shapes_are_accepted(
    stand_in: StandIn, plugin: int, function: str, tokens: int
) -> None:
    for dtype in (HALF, BF16):
        assert stand_in.with_tensors(function, plugin, good_tensors(tokens, dtype)) == 0


def test_wildcard_sizes_are_accepted_at_configuration(stand_in: StandIn, plugin: int) -> None:
    assert stand_in.with_tensors("configure", plugin, good_tensors(ANY_SIZE)) == 0


@pytest.mark.parametrize("function", ["configure", "change_shape"])
@pytest.mark.parametrize(
    ("position", "replacement"),
    [
        (0, tensor(HALF, 5, WIDTH - 64)),
        (0, tensor(HALF, 5, WIDTH, 1)),
        (0, tensor(HALF, 5)),
        (0, tensor(FLOAT, 5, WIDTH)),
        (0, tensor(BF16, 5, WIDTH)),
        (1, tensor(INT32, 6)),
        (1, tensor(INT32, 5, 1)),
        (1, tensor(INT64, 5)),
        (2, tensor(FLOAT, 1024, 64)),
        (2, tensor(FLOAT, 32)),
        (2, tensor(HALF, 1024, 32)),
        (3, tensor(HALF, 6, WIDTH)),
        (3, tensor(HALF, 5, WIDTH + 64)),
        (3, tensor(FLOAT, 5, WIDTH)),
    ],
)
def test_shapes_and_types_that_do_not_fit_are_refused(
    stand_in: StandIn, plugin: int, function: str, position: int, replacement: Tensor
) -> None:
    tensors = good_tensors()
    tensors[position] = replacement
    assert stand_in.with_tensors(function, plugin, tensors) > 0


@pytest.mark.parametrize("function", ["configure", "change_shape"])
@pytest.mark.parametrize("dtype", [FLOAT, FP8, INT8])
def test_other_types_are_refused_on_both_sides(
    stand_in: StandIn, plugin: int, function: str, dtype: int
) -> None:
    assert stand_in.with_tensors(function, plugin, good_tensors(dtype=dtype)) > 0


def test_no_tokens_launch_nothing(stand_in: StandIn, plugin: int) -> None:
    nothing = (ctypes.c_void_p * 3)()
    for rows in (1024, 0):
        tensors = good_tensors(tokens=0)
        tensors[2] = tensor(FLOAT, rows, 32)
        assert stand_in.call("enqueue", plugin, (Tensor * 4)(*tensors), nothing, nothing) == 0


def test_a_failed_launch_is_reported(
    stand_in: StandIn, plugin: int, capfd: pytest.CaptureFixture[str]
) -> None:
    if torch.cuda.is_available():
        pytest.skip("a CUDA device is present, so this launch would not fail")
    array = (Tensor * 4)(*good_tensors(tokens=1))
    memory = ctypes.create_string_buffer(WIDTH * 4)
    addresses = (ctypes.c_void_p * 3)(*[ctypes.addressof(memory)] * 3)
    assert stand_in.call("enqueue", plugin, array, addresses, addresses) > 0
    assert "the launch failed with status" in capfd.readouterr().err
    assert stand_in.call("enqueue", plugin, array, (ctypes.c_void_p * 3)(), addresses) < 0


@pytest.mark.parametrize("dtype", [HALF, BF16])
@pytest.mark.parametrize(
    ("rows", "message"), [(0, "status -2"), (2**31, "more than an INT32"), (2**32 + 8, "INT32")]
)
def test_tables_that_positions_cannot_name_are_refused(
    stand_in: StandIn,
    plugin: int,
    dtype: int,
    rows: int,
    message: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    tensors = good_tensors(tokens=1, dtype=dtype)
    tensors[2] = tensor(FLOAT, rows, 32)
    memory = ctypes.create_string_buffer(64)
    addresses = (ctypes.c_void_p * 3)(*[ctypes.addressof(memory)] * 3)
    assert stand_in.call("enqueue", plugin, (Tensor * 4)(*tensors), addresses, addresses) != 0
    assert message in capfd.readouterr().err
