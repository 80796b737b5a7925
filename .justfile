# The usual commands; `just` lists them.

default:
    @just --list

# Installs the project and what its tests need
setup:
    python -m pip install -e '.[test]'

# The tests of some files, or all that can run here
test *files:
    python -m pytest {{files}}

# Style and types
check:
    ruff check .
    ruff format --check .
    mypy

# Line coverage of each package by all tests, subprocesses included
coverage:
    python -m pip install --quiet coverage
    coverage erase
    coverage run -m pytest
    coverage combine --quiet
    for p in specllama/[!_]*/; do echo "$p $(coverage report --format=total --include="$p*") %"; done

# Completions, man page and command pages, from the CLI
made:
    python -m docs.made

# Everything from scratch, as CI runs it
ci:
    .ci/run

# The tuner against a grid on a real model
benchmark:
    python -m benchmarks.real --quick
