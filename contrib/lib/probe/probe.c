/* SPDX-License-Identifier: Apache-2.0
 * What a process inside a container sees, told by the kernel's own answers.
 * Linked statically, so that it runs in an image that holds nothing else.
 *
 *   probe open PATH [r|w|rw]        errno's name of open(2), OK when it worked
 *   probe mknod PATH b|c MAJOR MINOR   mknod(2), then open(2): "OK EPERM"
 *   probe write PATH                create or truncate and write one byte
 *   probe stat PATH                 "c 195 255 0666 0 0" (type, numbers, mode, uid, gid)
 *   probe cat PATH | ls PATH | link PATH
 *   probe id                        "uid gid groups..."
 *   probe pause                     wait for a signal to end
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static const char *outcome(int result)
{
	const char *name = result < 0 ? strerrorname_np(errno) : "OK";

	return name ? name : "unknown";
}

static const char *try_open(const char *path, int flags)
{
	int fd = open(path, flags | O_NONBLOCK | O_CLOEXEC);
	const char *name = outcome(fd);

	if (fd >= 0)
		close(fd);
	return name;
}

static int show_stat(const char *path)
{
	struct stat s;
	char type;

	if (lstat(path, &s) < 0) {
		puts(outcome(-1));
		return 0;
	}
	switch (s.st_mode & S_IFMT) {
	case S_IFCHR: type = 'c'; break;
	case S_IFBLK: type = 'b'; break;
	case S_IFDIR: type = 'd'; break;
	case S_IFLNK: type = 'l'; break;
	case S_IFREG: type = '-'; break;
	default: type = '?';
	}
	printf("%c %u %u %04o %u %u\n", type, major(s.st_rdev), minor(s.st_rdev),
	       s.st_mode & 07777, s.st_uid, s.st_gid);
	return 0;
}

static int cat(const char *path)
{
	char buffer[65536];
	ssize_t size = -1;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	while (fd >= 0 && (size = read(fd, buffer, sizeof buffer)) > 0)
		if (write(STDOUT_FILENO, buffer, size) != size)
			return 1;
	if (fd >= 0 && size == 0)
		return 0;
	fprintf(stderr, "%s: %s\n", path, outcome(-1));
	return 1;
}

static int list(const char *path)
{
	struct dirent *entry;
	DIR *directory = opendir(path);

	if (!directory) {
		fprintf(stderr, "%s: %s\n", path, outcome(-1));
		return 1;
	}
	while ((entry = readdir(directory)))
		if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
			puts(entry->d_name);
	return 0;
}

static int show_link(const char *path)
{
	char target[4096];
	ssize_t size = readlink(path, target, sizeof target - 1);

	if (size < 0) {
		fprintf(stderr, "%s: %s\n", path, outcome(-1));
		return 1;
	}
	target[size] = 0;
	puts(target);
	return 0;
}

static int make_node(char **argument)
{
	mode_t type = argument[1][0] == 'b' ? S_IFBLK : S_IFCHR;
	int made = mknod(argument[0], type | 0666, makedev(atoi(argument[2]), atoi(argument[3])));

	printf("%s ", outcome(made));
	puts(try_open(argument[0], O_RDWR));
	return 0;
}

static int try_write(const char *path)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);

	puts(outcome(fd < 0 ? fd : (int)write(fd, "x", 1)));
	return 0;
}

static int identity(void)
{
	gid_t groups[1024];
	int count = getgroups(1024, groups);

	printf("%u %u", getuid(), getgid());
	for (int i = 0; i < count; i++)
		printf(" %u", groups[i]);
	puts("");
	return 0;
}

static void leave(int number)
{
	_exit(number == SIGTERM ? 0 : 1);
}

int main(int count, char **argument)
{
	const char *verb = count > 1 ? argument[1] : "";

	if (!strcmp(verb, "open") && count > 2) {
		const char *way = count > 3 ? argument[3] : "rw";
		int flags = strchr(way, 'w') ? strchr(way, 'r') ? O_RDWR : O_WRONLY : O_RDONLY;

		puts(try_open(argument[2], flags));
		return 0;
	}
	if (!strcmp(verb, "mknod") && count == 6)
		return make_node(argument + 2);
	if (!strcmp(verb, "write") && count == 3)
		return try_write(argument[2]);
	if (!strcmp(verb, "stat") && count == 3)
		return show_stat(argument[2]);
	if (!strcmp(verb, "cat") && count == 3)
		return cat(argument[2]);
	if (!strcmp(verb, "ls") && count == 3)
		return list(argument[2]);
	if (!strcmp(verb, "link") && count == 3)
		return show_link(argument[2]);
	if (!strcmp(verb, "id"))
		return identity();
	if (!strcmp(verb, "pause")) {
		signal(SIGTERM, leave);
		signal(SIGINT, leave);
		for (;;)
			pause();
	}
	fputs("usage: probe open|mknod|write|stat|cat|ls|link|id|pause ...\n", stderr);
	return 2;
}
