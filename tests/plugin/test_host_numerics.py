# SPDX-License-Identifier: Apache-2.0
"""The rotation, on the host, against Hugging Face's and ONNX's."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator
from specprefill.errors import EngineError
from specprefill.explicit_rotary.cos_sin_table import build_cos_sin_table
from specprefill.explicit_rotary.host_reference import rotate_on_device, rotate_on_host
from specprefill.explicit_rotary.libraries import RotaryArguments
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

SameBits = Callable[[torch.Tensor, torch.Tensor], None]

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
MAX_POSITION = 2048
# (q heads, kv heads, head size, rotary dim); the second and the last three do not fill packs.
GEOMETRIES = [
    (4, 4, 64, 64),
    (9, 3, 20, 20),
    (8, 2, 128, 128),
    (8, 1, 64, 64),
    (4, 2, 64, 32),
    (32, 8, 128, 64),
    (4, 2, 80, 20),
    (3, 1, 6, 2),
    (1, 1, 2, 2),
]
ROPE_PARAMETERS = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 512,
    },
}
POSITIONS = {
    "ascending": torch.arange(37),
    "random": torch.randint(0, MAX_POSITION, (37,), generator=torch.Generator().manual_seed(1)),
    "repeated": torch.tensor([5] * 20 + [1999] * 17),
    "gapped": torch.arange(37) * 55,
    "extreme": torch.tensor([0, MAX_POSITION - 1] * 18 + [0]),
}


def llama_config(rope: str, head_size: int) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=head_size,
        num_attention_heads=1,
        head_dim=head_size,
        max_position_embeddings=MAX_POSITION,
        rope_parameters=dict(ROPE_PARAMETERS[rope]),
    )


def random_qkv(
    tokens: int, geometry: tuple[int, int, int, int], dtype: torch.dtype, seed: int = 0
) -> torch.Tensor:
    q_heads, kv_heads, head_size, _ = geometry
    generator = torch.Generator().manual_seed(seed)
    width = (q_heads + 2 * kv_heads) * head_size
    return (torch.randn(tokens, width, generator=generator) * 3).to(dtype)


def hugging_face_rotation(
    qkv: torch.Tensor,
    cosines: torch.Tensor,
    sines: torch.Tensor,
    geometry: tuple[int, int, int, int],
) -> torch.Tensor:
    """Rotate in float32 with cosines and sines [T, rotary_dim]; round once."""
    q_heads, kv_heads, head_size, rotary_dim = geometry
    tokens = qkv.shape[0]
    q, k, v = qkv.split([q_heads * head_size, kv_heads * head_size, kv_heads * head_size], dim=-1)
    q = q.view(tokens, q_heads, head_size).float()
    k = k.view(tokens, kv_heads, head_size).float()
    q_turned, k_turned = apply_rotary_pos_emb(
        q[None, ..., :rotary_dim],
        k[None, ..., :rotary_dim],
        cosines[None],
        sines[None],
        unsqueeze_dim=2,
    )
    q = torch.cat((q_turned[0], q[..., rotary_dim:]), dim=-1).flatten(1)
    k = torch.cat((k_turned[0], k[..., rotary_dim:]), dim=-1).flatten(1)
    return torch.cat((q.to(qkv.dtype), k.to(qkv.dtype), v), dim=-1)


def hugging_face_cos_sin(
    config: LlamaConfig, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    cosines, sines = LlamaRotaryEmbedding(config)(torch.zeros(1), positions[None])
    return cosines[0], sines[0]


def test_exports_only_its_entry_point(
    host_library: Path, exported_symbols: Callable[[Path], list[str]]
) -> None:
    assert exported_symbols(host_library) == ["explicit_rotary_host"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize("rope", ROPE_PARAMETERS)
def test_equals_rounded_float32_hugging_face(
    host_library: Path,
    assert_same_bits: SameBits,
    rope: str,
    geometry: tuple[int, int, int, int],
    dtype: torch.dtype,
) -> None:
    config = llama_config(rope, head_size=geometry[3])
    table = build_cos_sin_table(config)
    for seed, positions in enumerate(POSITIONS.values()):
        qkv = random_qkv(len(positions), geometry, dtype, seed)
        rotated = rotate_on_host(
            qkv, positions.int(), table, geometry[0], geometry[1], host_library
        )
        cosines, sines = hugging_face_cos_sin(config, positions)
        assert_same_bits(rotated, hugging_face_rotation(qkv, cosines, sines, geometry))


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_equals_hugging_face_for_any_geometry(
    host_library: Path, assert_same_bits: SameBits, data: st.DataObject
) -> None:
    head_size = data.draw(st.integers(2, 48))
    geometry = (
        data.draw(st.integers(1, 6)),
        data.draw(st.integers(1, 4)),
        head_size,
        2 * data.draw(st.integers(1, head_size // 2)),
    )
    dtype = data.draw(st.sampled_from(DTYPES))
    positions = torch.tensor(data.draw(st.lists(st.integers(0, 63), max_size=5)), dtype=torch.int32)
    seed = data.draw(st.integers(0, 2**31))
    qkv = random_qkv(len(positions), geometry, dtype, seed)
    table = torch.randn(64, geometry[3], generator=torch.Generator().manual_seed(seed))
    rotated = rotate_on_host(qkv, positions, table, geometry[0], geometry[1], host_library)
    cosines, sines = table[positions.long()].chunk(2, dim=-1)
    expected = hugging_face_rotation(
        qkv, torch.cat((cosines, cosines), -1), torch.cat((sines, sines), -1), geometry
    )
    assert_same_bits(rotated, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("cosine", [1.0, 0.0, 0.3, 1.0009765625, 3.0, 1e-3])
def test_every_16_bit_value_rounds_as_torch_rounds(
    host_library: Path, assert_same_bits: SameBits, dtype: torch.dtype, cosine: float
) -> None:
    """Subnormals, signed zeros, overflow to infinity, infinities and NaNs included."""
    geometry = (2**11, 2**11, 16, 16)
    all_values = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    shuffled = all_values[torch.randperm(2**16, generator=torch.Generator().manual_seed(3))]
    qkv = torch.cat((all_values[: 2**15], shuffled))[None].contiguous()
    table = torch.tensor([[cosine] * 8 + [0.7] * 8])
    rotated = rotate_on_host(
        qkv, torch.zeros(1, dtype=torch.int32), table, geometry[0], geometry[1], host_library
    )
    expected = hugging_face_rotation(
        qkv, torch.full((1, 16), cosine), torch.full((1, 16), 0.7), geometry
    )
    assert_same_bits(rotated, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_positions_outside_the_table_are_clamped(
    host_library: Path, assert_same_bits: SameBits, dtype: torch.dtype
) -> None:
    geometry = (2, 1, 32, 32)
    table = build_cos_sin_table(llama_config("default", 32), max_position=100)
    outside = torch.tensor([-1, -(2**31), 100, 101, 2**31 - 1], dtype=torch.int32)
    inside = torch.tensor([0, 0, 99, 99, 99], dtype=torch.int32)
    qkv = random_qkv(5, geometry, dtype)
    rotated = rotate_on_host(qkv, outside, table, 2, 1, host_library)
    assert_same_bits(rotated, rotate_on_host(qkv, inside, table, 2, 1, host_library))


@pytest.mark.parametrize("tokens", [0, 1])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_zero_and_one_token(
    host_library: Path, assert_same_bits: SameBits, tokens: int, dtype: torch.dtype
) -> None:
    geometry = (4, 2, 64, 64)
    config = llama_config("llama3", 64)
    positions = torch.full((tokens,), 777)
    qkv = random_qkv(tokens, geometry, dtype)
    rotated = rotate_on_host(qkv, positions.int(), build_cos_sin_table(config), 4, 2, host_library)
    cosines, sines = hugging_face_cos_sin(config, positions)
    assert_same_bits(rotated, hugging_face_rotation(qkv, cosines, sines, geometry))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_values_heads_and_unrotated_dimensions_are_copied_bit_by_bit(
    host_library: Path,
    assert_same_bits: SameBits,
    geometry: tuple[int, int, int, int],
    dtype: torch.dtype,
) -> None:
    q_heads, kv_heads, head_size, rotary_dim = geometry
    bits = torch.int32 if dtype == torch.float32 else torch.int16
    heads = q_heads + 2 * kv_heads
    generator = torch.Generator().manual_seed(9)
    qkv = torch.randint(
        torch.iinfo(bits).min, torch.iinfo(bits).max, (3, heads * head_size), generator=generator
    ).to(bits)
    table = build_cos_sin_table(llama_config("default", rotary_dim), max_position=50)
    positions = torch.tensor([49, 7, 20], dtype=torch.int32)
    rotated = rotate_on_host(qkv.view(dtype), positions, table, q_heads, kv_heads, host_library)
    before = qkv.view(3, heads, head_size)
    after = rotated.view(bits).view(3, heads, head_size)
    assert torch.equal(after[:, -kv_heads:], before[:, -kv_heads:])
    assert torch.equal(after[..., rotary_dim:], before[..., rotary_dim:])
    assert not torch.equal(after, before)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_unaligned_tensors_and_in_place_rotation(
    host_library: Path, assert_same_bits: SameBits, dtype: torch.dtype
) -> None:
    geometry = (4, 2, 64, 64)
    qkv = random_qkv(6, geometry, dtype)
    table = build_cos_sin_table(llama_config("default", 64))
    positions = torch.arange(6, dtype=torch.int32) * 100
    expected = rotate_on_host(qkv, positions, table, 4, 2, host_library)
    storage = torch.empty(qkv.numel() + 1, dtype=dtype)
    unaligned = storage[1:].view_as(qkv).copy_(qkv)
    assert unaligned.data_ptr() % 16 != 0
    assert_same_bits(rotate_on_host(unaligned, positions, table, 4, 2, host_library), expected)

    arguments = RotaryArguments(
        qkv=qkv.data_ptr(),
        position_ids=positions.data_ptr(),
        cos_sin=table.data_ptr(),
        output=qkv.data_ptr(),
        num_tokens=6,
        num_q_heads=4,
        num_kv_heads=2,
        head_size=64,
        rotary_dim=64,
        max_position=MAX_POSITION,
        element_type={torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}[dtype],
    )
    assert ctypes.CDLL(str(host_library)).explicit_rotary_host(ctypes.byref(arguments)) == 0
    assert_same_bits(qkv, expected)


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_equals_the_standard_onnx_operator(
    host_library: Path, assert_same_bits: SameBits, geometry: tuple[int, int, int, int]
) -> None:
    q_heads, kv_heads, head_size, rotary_dim = geometry
    rotated_heads = q_heads + kv_heads
    table = build_cos_sin_table(llama_config("llama3", rotary_dim))
    positions = POSITIONS["random"]
    qkv = random_qkv(len(positions), geometry, torch.float32)
    node = onnx.helper.make_node(
        "RotaryEmbedding",
        ["x", "cos", "sin", "position_ids"],
        ["y"],
        rotary_embedding_dim=rotary_dim,
        num_heads=rotated_heads,
        interleaved=0,
    )
    float_type, int_type = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
    inputs = [
        onnx.helper.make_tensor_value_info(
            name, int_type if name == "position_ids" else float_type, None
        )
        for name in node.input
    ]
    outputs = [onnx.helper.make_tensor_value_info("y", float_type, None)]
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "rotary", inputs, outputs),
        opset_imports=[onnx.helper.make_opsetid("", 23)],
    )
    cosines, sines = table.chunk(2, dim=-1)
    (expected,) = ReferenceEvaluator(model).run(
        None,
        {
            "x": qkv[None, :, : rotated_heads * head_size].numpy(),
            "cos": cosines.numpy(),
            "sin": sines.numpy(),
            "position_ids": positions[None].numpy(),
        },
    )
    rotated = rotate_on_host(qkv, positions.int(), table, q_heads, kv_heads, host_library)
    actual = rotated[:, : rotated_heads * head_size].contiguous()
    assert_same_bits(actual, torch.from_numpy(np.ascontiguousarray(expected[0])))


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, 0),
        ({"qkv": None}, -1),
        ({"position_ids": None}, -1),
        ({"cos_sin": None}, -1),
        ({"output": None}, -1),
        ({"num_tokens": 0, "qkv": None, "output": None}, 0),
        ({"num_q_heads": 0}, -2),
        ({"num_kv_heads": 0}, -2),
        ({"head_size": 2**30}, -2),
        ({"num_q_heads": 2**31 - 1, "num_kv_heads": 2**31 - 1}, -2),
        ({"rotary_dim": 0}, -2),
        ({"rotary_dim": 3}, -2),
        ({"rotary_dim": 6}, -2),
        ({"max_position": 0}, -2),
        ({"element_type": 3}, -3),
        ({"element_type": -1}, -3),
        ({"rotary_style": 1}, -4),
        ({"num_tokens": -1}, -5),
        ({"num_tokens": 2**31}, -5),
    ],
)
def test_bad_arguments_are_refused(
    host_library: Path, changes: dict[str, int | None], status: int
) -> None:
    buffer = ctypes.create_string_buffer(4096)
    values: dict[str, int | None] = dict.fromkeys(
        ("qkv", "position_ids", "cos_sin", "output"), ctypes.addressof(buffer)
    )
    values |= {
        "num_tokens": 1,
        "num_q_heads": 2,
        "num_kv_heads": 1,
        "head_size": 4,
        "rotary_dim": 4,
        "max_position": 8,
        "element_type": 0,
        "rotary_style": 0,
    }
    arguments = RotaryArguments(**(values | changes))
    rotate = ctypes.CDLL(str(host_library)).explicit_rotary_host
    assert rotate(ctypes.byref(arguments)) == status
    assert rotate(None) == -1


def test_wrapper_refuses_tensors_that_do_not_fit(host_library: Path) -> None:
    qkv = torch.zeros(3, 32)
    positions = torch.zeros(3, dtype=torch.int32)
    table = torch.zeros(10, 8)
    rotate_on_host(qkv, positions, table, 2, 1, host_library)
    refused = [
        ("qkv has type", (qkv.double(), positions, table, 2, 1)),
        ("position_ids is torch.int64", (qkv, positions.long(), table, 2, 1)),
        ("position_ids is .* expected torch.int32", (qkv, positions[:2], table, 2, 1)),
        ("cos_sin is torch.float16", (qkv, positions, table.half(), 2, 1)),
        ("cos_sin has shape", (qkv, positions, table[0], 2, 1)),
        ("qkv has shape", (qkv, positions, table, 5, 1)),
        ("qkv has shape", (qkv, positions, table, 0, 1)),
        ("rotary_dim", (qkv, positions, torch.zeros(10, 10), 2, 1)),
        ("must be contiguous", (torch.zeros(32, 3).T, positions, table, 2, 1)),
        ("needs the CPU", (qkv.to("meta"), positions, table, 2, 1)),
        ("position_ids is on meta", (qkv, positions.to("meta"), table, 2, 1)),
    ]
    for message, arguments in refused:
        with pytest.raises(ValueError, match=message):
            rotate_on_host(*arguments, host_library)
    with pytest.raises(ValueError, match="needs a CUDA device"):
        rotate_on_device(qkv, positions, table, 2, 1)


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECPREFILL_PLUGIN_PATH", str(tmp_path))
    with pytest.raises(EngineError, match=f"{tmp_path}.*CMake target host"):
        rotate_on_host(
            torch.zeros(1, 6), torch.zeros(1, dtype=torch.int32), torch.zeros(1, 2), 1, 1
        )


def test_the_host_library_is_found_through_the_environment(
    host_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECPREFILL_PLUGIN_PATH", str(host_library.parent))
    qkv = torch.ones(1, 6)
    table = torch.tensor([[0.0, 1.0]])
    rotated = rotate_on_host(qkv, torch.zeros(1, dtype=torch.int32), table, 1, 1)
    assert rotated.tolist() == [[-1, 1, -1, 1, 1, 1]]
