# SPDX-License-Identifier: Apache-2.0
"""Ask over HTTP with nothing but the standard library: /generate, or /generate_stream.

Example: python clients/http_client.py "The capital of France is" --max-tokens 8 --stream
"""

import argparse
import json
import urllib.error
import urllib.request


def main() -> None:
    """Send one request and print its answer."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("prompt")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="Triton's HTTP address")
    parser.add_argument("--model", default="specprefill", help="specprefill or ensemble")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--keep-rate", type=float, help="share of the prompt to keep; 1 is dense")
    parser.add_argument("--stream", action="store_true", help="print pieces as they come")
    arguments = parser.parse_args()

    body = {
        "text_input": arguments.prompt,
        "max_tokens": arguments.max_tokens,
        "stream": arguments.stream,
    }
    if arguments.keep_rate is not None:
        body["keep_rate"] = arguments.keep_rate
    way = "generate_stream" if arguments.stream else "generate"
    request = urllib.request.Request(
        f"{arguments.url}/v2/models/{arguments.model}/{way}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request) as response:
            for line in response:
                text = line.decode().removeprefix("data: ").strip()
                if text:  # an event ends with an empty line
                    answer = json.loads(text)
                    if "error" in answer:
                        raise SystemExit(f"error: {answer['error']}")
                    print(answer["text_output"], end="", flush=True)
    except urllib.error.HTTPError as error:
        raise SystemExit(f"error: {error.read().decode()}") from None
    except urllib.error.URLError as error:
        raise SystemExit(f"error: {arguments.url}: {error.reason}") from None
    print()


if __name__ == "__main__":
    main()
