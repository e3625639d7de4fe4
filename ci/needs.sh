# Sourced by scripts that need what may be missing: a nightly toolchain, or valgrind. Those that skip say in `check` what they are called,
# and in `must` whether to fail where they would skip. With NIGHTLY_FETCH=0 no toolchain is fetched: what is missing is named, with the
# command that gets it.

skip() {
    echo "$check: SKIPPED: $*" >&2
    [ "$must" != 1 ]
    exit
}

# has_toolchain COMPONENT...: whether there is a nightly toolchain with these. (Not asked by running it: rustup would fetch it.)
has_toolchain() {
    local installed component
    installed=$(rustup component list --toolchain nightly --installed 2>/dev/null) || return
    for component in rustc "$@"; do
        grep -qE "^$component(-|$)" <<<"$installed" || return
    done
}

# need_toolchain COMPONENT...: a nightly toolchain with these, or the end of the script.
need_toolchain() {
    local get=(rustup toolchain install nightly --profile minimal "${@/#/--component=}")
    command -v rustup >/dev/null || skip "there is no rustup to get a nightly toolchain"
    has_toolchain "$@" && return
    [ "${NIGHTLY_FETCH:-1}" = 1 ] || skip "there is no nightly toolchain${*:+ with $*}; this gets it: ${get[*]}"
    "${get[@]}" >/dev/null 2>&1 || skip "there is no nightly toolchain${*:+ with $*}, and it cannot be had: ${get[*]}"
}

# get_valgrind: whether there is valgrind. If it is missing and apt may do so it is installed.
get_valgrind() {
    if ! command -v valgrind >/dev/null && [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
        { apt-get update -qq && apt-get install -y -qq valgrind; } >/dev/null 2>&1 || true
    fi
    command -v valgrind >/dev/null
}
