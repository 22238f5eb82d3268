# SPDX-License-Identifier: Apache-2.0
"""Stream one answer over gRPC with nothing but tritonclient; works with `ensemble` as well.

Example: python clients/grpc_client.py "The capital of France is" --max-tokens 8
"""

import argparse
import queue

import numpy as np
import tritonclient.grpc as grpc


def tensor(name: str, value: object, dtype: str) -> grpc.InferInput:
    """Build an input of shape [1, 1]: batch and value."""
    array = np.array([[value]], dtype=np.object_ if dtype == "BYTES" else None)
    infer_input = grpc.InferInput(name, [1, 1], dtype)
    infer_input.set_data_from_numpy(array)
    return infer_input


def main() -> None:
    """Send one request and print the pieces of its answer as they come."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("prompt")
    parser.add_argument("--url", default="127.0.0.1:8001", help="host:port of Triton's gRPC")
    parser.add_argument("--model", default="specprefill", help="specprefill or ensemble")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--keep-rate", type=float, help="share of the prompt to keep; 1 is dense")
    arguments = parser.parse_args()

    inputs = [
        tensor("text_input", arguments.prompt.encode(), "BYTES"),
        tensor("max_tokens", np.int32(arguments.max_tokens), "INT32"),
        tensor("stream", True, "BOOL"),
    ]
    if arguments.keep_rate is not None:
        inputs.append(tensor("keep_rate", np.float32(arguments.keep_rate), "FP32"))

    responses: queue.Queue = queue.Queue()
    with grpc.InferenceServerClient(arguments.url) as client:
        client.start_stream(lambda result, error: responses.put((result, error)))
        client.async_stream_infer(arguments.model, inputs)
        final = False
        while not final:
            result, error = responses.get()
            if error is not None:
                raise SystemExit(f"error: {error.message()}")
            print(result.as_numpy("text_output")[0].decode(), end="", flush=True)
            final = result.get_response().parameters["triton_final_response"].bool_param
    print()


if __name__ == "__main__":
    main()
