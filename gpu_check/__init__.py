# SPDX-License-Identifier: Apache-2.0
"""Checks that need a GPU, with a report to read and one to attach to a bug.

None of the checks has run on a GPU yet; the runner, the needs and the reports are tested without.
"""
