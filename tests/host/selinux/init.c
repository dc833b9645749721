/* SPDX-License-Identifier: Apache-2.0
 * The first and only program of the machine: loads /policy and has it enforced, makes what /list
 * says on a file system in memory, and tells for each file whether a container may map it.
 * A line of /list: d, f or l; a path; a label or -; for l the target.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

static char policy[1 << 20];

static void check(long result, const char *what)
{
	if (result < 0)
		printf("FAILED %s: %s\n", what, strerror(errno));
}

static void put(const char *path, const char *data, size_t length)
{
	int file = open(path, O_WRONLY);

	check(file < 0 ? -1 : write(file, data, length), path);
	close(file);
}

static void make(char kind, const char *path, const char *label, const char *target)
{
	int file;

	if (kind == 'd')
		check(mkdir(path, 0755), path);
	else if (kind == 'l')
		check(symlink(target, path), path);
	else {
		file = open(path, O_CREAT | O_WRONLY, 0755);
		check(file < 0 ? -1 : write(file, "x", 1), path);
		close(file);
	}
	if (strcmp(label, "-"))
		check(lsetxattr(path, "security.selinux", label, strlen(label) + 1, 0), path);
}

static void look(const char *path)
{
	int file = open(path, O_RDONLY);
	void *map = MAP_FAILED;

	if (file >= 0)
		map = mmap(NULL, 1, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0);
	printf("%s: %s\n", path, map == MAP_FAILED ? strerror(errno) : "ok");
	if (file >= 0)
		close(file);
}

int main(void)
{
	char line[1024], kind, path[300], label[300], target[300];
	FILE *list;
	int file;

	mkdir("/proc", 0755);
	mkdir("/sys", 0755);
	mkdir("/t", 0755);
	check(mount("proc", "/proc", "proc", 0, NULL), "/proc");
	check(mount("sysfs", "/sys", "sysfs", 0, NULL), "/sys");
	check(mount("selinuxfs", "/sys/fs/selinux", "selinuxfs", 0, NULL), "selinuxfs");
	file = open("/policy", O_RDONLY);
	put("/sys/fs/selinux/load", policy, read(file, policy, sizeof(policy)));
	check(mount("tmpfs", "/t", "tmpfs", 0, NULL), "/t");
	list = fopen("/list", "r");
	while (list && fgets(line, sizeof(line), list)) {
		*target = 0;
		if (sscanf(line, "%c %299s %299s %299s", &kind, path, label, target) >= 3)
			make(kind, path, label, target);
	}
	put("/sys/fs/selinux/enforce", "1", 1);
	fflush(stdout);
	if (fork() == 0) {
		const char *container = "system_u:system_r:container_t:s0";

		put("/proc/self/attr/current", container, strlen(container) + 1);
		if (list)
			rewind(list);
		while (list && fgets(line, sizeof(line), list))
			if (sscanf(line, "%c %299s", &kind, path) == 2 && kind != 'd')
				look(path);
		fflush(stdout);
		_exit(0);
	}
	wait(NULL);
	printf("END\n");
	fflush(stdout);
	reboot(RB_POWER_OFF);
	return 0;
}
