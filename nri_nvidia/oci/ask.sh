# SPDX-License-Identifier: Apache-2.0
# Has a process that stands ready (`oci/warm.py`) do what a Python of its own would do here, which
# takes some ten milliseconds to start. A part of a POSIX shell's script, which has `warm` be the
# directory of that process.
#
# ask KIND [ID CONFIG]: gives 0, and in `status` the exit status of what was done; what there was to
# be said is on standard error. Else it is to be done here: there is no such process, it is busy, it
# cannot serve this caller, or it has ended, and left standard input to be read.
ask() {
	[ -p "$warm/requests" ] || return 1
	case $2 in
	*'
'*) return 1 ;;
	esac
	pid=$$
	case $1 in
	hook) read -r pid _ </proc/self/stat || return 1 ;; # $$ is the number in the container's namespace
	esac
	set -C # who makes a file is the only one that does
	for slot in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 ''; do
		[ -n "$slot" ] || break
		{ printf '%s\n%s\n%s\n%s' "$pid" "$1" "$2" "$3" >"$warm/$slot.taken"; } 2>/dev/null && break
	done
	set +C
	[ -n "$slot" ] || return 1
	# Standard input is another file whenever a line is read from a pipe: it is to be found as 7. To
	# open a pipe for both directions never waits. One that is open for reading alone ends as soon as
	# nobody is left who could write: so none waits here for a process that has died.
	{ command exec 7<&0 8<>"$warm/$slot" 9<"$warm/$slot" 8>&-; } 2>/dev/null || return 1
	status='' taker=''
	# One that was stopped for long has lost the slot to another, who is to have that one's answer.
	{ read -r taker <"$warm/$slot.taken"; } 2>/dev/null
	if [ "$taker" = "$pid" ] && { printf '%-31s\n' "$slot $pid" 1<>"$warm/requests"; } 2>/dev/null; then
		while IFS= read -r line <&9; do
			case $line in
			'exit '*)
				status=${line#exit }
				break
				;;
			esac
			printf '%s\n' "$line" >&2
		done
	fi
	exec 7<&- 9<&-
	[ -n "$status" ]
}
