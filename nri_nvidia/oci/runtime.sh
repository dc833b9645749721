#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# nri-nvidia-runtime: an OCI runtime that adds the NVIDIA GPUs a container asks for, and then is
# the real one.
#
# Only create and run are looked at, and of those only containers whose config.json holds one of
# the texts that a request begins with. All else goes to the real runtime at once: an engine asks
# for a container's state often. So this starts one program at most, grep.
#
# Environment:
#   NRI_NVIDIA_RUNTIME  the real runtime, by its path or a name on PATH; else the first line of
#                       /etc/nri-nvidia/runtime; else the first runc or crun on PATH
#   NRI_NVIDIA_RUN      the directory of the daemon's control socket (default /run/nri-nvidia)

# docker turns --gpus into variables and a hook of this name if it finds such a program. Under this
# runtime the hook is taken out of what is served; so where it runs, the container was not. One that
# has its GPUs by CDI, or that asks for none (`--gpus 0`), may start.
case ${0##*/} in
nvidia-container-runtime-hook)
	bundle=$(sed -n 's/.*"bundle" *: *"\([^"]*\)".*/\1/p')
	config=$bundle/config.json
	if [ -r "$config" ] && { grep -q -F /nri-nvidia-hook -- "$config" ||
		! grep -o '"NVIDIA_VISIBLE_DEVICES=[^"]*"' -- "$config" | grep -q -v -E '=(void)?"'; }; then
		exit 0
	fi
	printf '%s\n' "nri-nvidia: --gpus asks for GPUs, and this container's runtime is not nri-nvidia-runtime: add --runtime nri-nvidia (nri-nvidia configure docker --apply makes it known), or make it docker's default-runtime" >&2
	exit 1
	;;
esac

run=${NRI_NVIDIA_RUN:-/run/nri-nvidia}
real=${NRI_NVIDIA_RUNTIME:-} namer=NRI_NVIDIA_RUNTIME
if [ -z "$real" ] && [ -r /etc/nri-nvidia/runtime ]; then
	read -r real </etc/nri-nvidia/runtime
	namer=/etc/nri-nvidia/runtime
fi
names=runc:crun
case $real in
*/*) names='' ;;
?*) names=$real real='' ;;
esac
if [ -n "$names" ]; then
	old_ifs=$IFS
	IFS=:
	for name in $names; do
		for folder in ${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}; do
			# One that is a link to this would call itself for ever.
			if [ -x "$folder/$name" ] && ! [ "$folder/$name" -ef "$0" ]; then
				real=$folder/$name
				break 2
			fi
		done
	done
	IFS=$old_ifs
fi

# say MESSAGE: tell why a container is not created, where engines look for it and on standard error.
say() {
	printf 'nri-nvidia-runtime: %s\n' "$1" >&2
	if [ -n "$log" ]; then
		told=$(printf '%s' "nri-nvidia: $1" | tr '"\\\000-\037' "'/?")
		printf '{"level":"error","msg":"%s"}\n' "$told" >>"$log"
	fi
}

# is_free NUMBER: whether a descriptor may be used here. One that is open is for the container; its
# link says so even of a file that may not be looked at.
is_free() {
	[ -d /proc/self/fd ] && ! [ -h "/proc/self/fd/$1" ]
}

# The verb is the first word that is neither an option nor the value of one. Go's flags take one
# dash or two. After an option that is not known here, a word is a verb only if it is a known one.
verb='' want='' bundle='' config='' id='' log='' unsure='' ended=''
for word do
	case $want in
	bundle) bundle=$word ;;
	config) config=$word ;;
	log) log=$word ;;
	esac
	if [ -n "$want" ]; then
		want=''
		continue
	fi
	if [ -z "$verb" ]; then
		case $word in
		-log | --log) want=log ;;
		-log=* | --log=*) log=${word#*=} ;;
		-root | --root | -log-format | --log-format | -log-level | --log-level) want=value ;;
		-rootless | --rootless | -criu | --criu | -cgroup-manager | --cgroup-manager) want=value ;;
		-debug | --debug | -systemd-cgroup | --systemd-cgroup | -*=*) unsure='' ;;
		-*) unsure=yes ;;
		create | run) verb=$word ;;
		checkpoint | delete | events | exec | features | help | kill | list | mounts | pause | ps) break ;;
		restore | resume | spec | start | state | update) break ;;
		*) [ -n "$unsure" ] || break ;;
		esac
		continue
	fi
	if [ -n "$ended" ]; then
		id=$word
		continue
	fi
	case $word in
	--) ended=yes ;;
	-b | -bundle | --bundle) want=bundle ;;
	-b=* | -bundle=* | --bundle=*) bundle=${word#*=} ;;
	-f | -config | --config) want=config ;;
	-config=* | --config=*) config=${word#*=} ;;
	-pid-file | --pid-file | -console-socket | --console-socket) want=value ;;
	-pidfd-socket | --pidfd-socket | -preserve-fds | --preserve-fds) want=value ;;
	-b?*) bundle=${word#-b} ;;
	-f?*) config=${word#-f} ;;
	-*) ;;
	*) id=$word ;;
	esac
done

if [ -z "$real" ] || ! [ -x "$real" ] || [ -d "$real" ]; then
	case $names in
	*:*) say "runc or crun: no such runtime on this machine; install one, or name another in /etc/nri-nvidia/runtime" ;;
	*) say "${real:-$names}: no such runtime on this machine, and $namer names it; install it, or change that" ;;
	esac
	exit 1
fi
if [ "$real" -ef "$0" ]; then
	say "$real: that is nri-nvidia-runtime itself; name the real runtime in /etc/nri-nvidia/runtime"
	exit 1
fi
[ -n "$verb" ] || exec "$real" "$@"

# A container without any of these texts asks for nothing. No engine writes a letter as \u....; such
# a file is looked at rather than overlooked.
config=${config:-${bundle:-.}/config.json}
warm=$run/warm
# Who stands ready sees that (`oci/looks.py`) in half the time that it takes to start grep, and says
# so by what it does to a file. It is not waited for longer than a moment: GPU-less containers
# are to start whatever becomes of it.
asks=unknown
looks=$warm/looks
if [ -w "$looks" ] && ! [ -e "$looks/late" ] && [ -f "$config" ] && is_free 8 && is_free 9; then
	look=$looks/$$
	set -C # another one's answer is not taken for this one's
	if { command exec 9<"$config" 8>"$look" && echo >&8; } 2>/dev/null; then
		turns=0
		while [ -s "$look" ] && ! [ -k "$look" ]; do
			turns=$((turns + 1))
			if [ "$turns" -gt 300 ]; then
				{ echo >"$looks/late"; } 2>/dev/null
				break
			fi
		done
		answer=unknown
		if [ -k "$look" ]; then
			answer=nothing
		elif ! [ -s "$look" ]; then
			answer=something
		fi
		# Where it was removed, another of this number may have made one: in a container's namespace.
		[ "$look" -ef /proc/self/fd/8 ] && asks=$answer
	fi
	set +C
	exec 8>&- 9<&-
fi
if [ "$asks" = unknown ]; then
	markers=$run/runtime/markers
	if [ -e "$config" ] && ! [ -f "$config" ]; then
		: # a FIFO would keep grep waiting; what asks says what is wrong with it
	elif ! { :; } 2>/dev/null; then
		: # grep would not be started, and that has the status of what it does not find
	elif [ -r "$markers" ]; then
		LC_ALL=C grep -q -F -f "$markers" -- "$config" 2>/dev/null
	else
		LC_ALL=C grep -q -F -e NVIDIA_VISIBLE_DEVICES= -e CUDA_VERSION= -e DOCKER_RESOURCE_ \
			-e nvidia-container-devices -e cdi.k8s.io/ -e '\u004' -e '\u005' -e '\u006' -e '\u007' \
			-e '\u0030' -e '\u0031' -e '\u0032' -e '\u0033' -e '\u0034' -e '\u0035' -e '\u0036' \
			-e '\u0037' -e '\u0038' -e '\u0039' -e '\u003d' -e '\u003D' -e '\u002d' -e '\u002D' \
			-e '\u002e' -e '\u002E' -e '\u002f' -e '\u002F' -e '\/' -- "$config" 2>/dev/null
	fi
	case $? in
	1) asks=nothing ;;
	2) [ -r "$config" ] || asks=nothing ;; # the real runtime says why it cannot be read
	esac
fi
[ "$asks" != nothing ] || exec "$real" "$@"

# The process that stands ready does all that follows here, for root: with `run` this process is to
# be watched as long as the container.
if [ "$verb" = create ] && [ -r "$warm/ask" ] && is_free 7 && is_free 8 && is_free 9; then
	. "$warm/ask"
	if ask runtime "$id" "$config"; then
		[ "$status" = 0 ] || exit 1
		exec "$real" "$@"
	fi
fi

# The daemon puts the program that asks it there, compiled for the interpreter that its first line
# names; /run may forbid to execute it by itself. Without a daemon ever started: the package's own.
client=$run/runtime/nri-nvidia-client
if [ -r "$client" ]; then
	IFS= read -r first <"$client"
	python=${first#\#!}
	python=${python% -IS}
	[ -x "$python" ] && exec "$python" -I -S "$client" "$run" "$real" "$config" "$id" "$@"
fi
for own in "$0" "$(readlink -f "$0")"; do
	python=${own%/*}/python
	[ -x "$python" ] && exec "$python" -I -m nri_nvidia.oci.client "$run" "$real" "$config" "$id" "$@"
done
if [ -d "$run" ]; then
	say "this container asks for a GPU, and nri-nvidia is not running on this node; start it: systemctl start nri-nvidia"
else
	say "this container asks for a GPU, and there is no $run here: start nri-nvidia (systemctl start nri-nvidia), and behind it restart a user's own engine that was started before"
fi
exit 1
