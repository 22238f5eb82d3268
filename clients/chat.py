# SPDX-License-Identifier: Apache-2.0
"""Chat over several turns; the whole conversation is sent each time. Needs specprefill's client.

Example: python clients/chat.py --system "Answer briefly."
         (echo "What is the capital of France?"; echo "And of Spain?") | python clients/chat.py
"""

import argparse
import json
import sys

from specprefill.client import ServerError, stream


def main() -> None:
    """Read one question per line until the end of the input."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="127.0.0.1:8001", help="host:port of Triton's gRPC")
    parser.add_argument("--system", help="system message")
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--keep-rate", type=float, help="share of the prompt to keep; 1 is dense")
    arguments = parser.parse_args()
    fields = {"max_tokens": arguments.max_tokens}
    if arguments.keep_rate is not None:
        fields["keep_rate"] = arguments.keep_rate
    messages = [{"role": "system", "content": arguments.system}] if arguments.system else []
    ask = "you> " if sys.stdin.isatty() else ""
    print(ask, end="", flush=True)
    for line in sys.stdin:
        if line.strip():
            messages.append({"role": "user", "content": line.strip()})
            answer, statistics = "", {}
            try:
                for piece in stream(arguments.url, messages=json.dumps(messages), **fields):
                    print(piece.text, end="", flush=True)
                    answer += piece.text
                    statistics = piece.outputs or statistics
            except ServerError as error:
                messages.pop()
                print(f"error: {error}", file=sys.stderr)
            else:
                messages.append({"role": "assistant", "content": answer})
                print(
                    f"\n[{statistics['kept_tokens']} of {statistics['prompt_tokens']} tokens kept; "
                    f"{statistics['reason']}; draft {statistics['draft_ms']:.0f} ms, "
                    f"target prefill {statistics['target_prefill_ms']:.0f} ms]"
                )
        print(ask, end="", flush=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # leaving the stream cancels its request
        print()
