/* SPDX-License-Identifier: Apache-2.0
 * probe-dlopen LIBRARY [FUNCTION]: load a library as an application would, by its name, and say
 * where it was found; with FUNCTION, call int FUNCTION(unsigned 0) and print what it returns.
 * Exit 0 when all worked, 1 with the dynamic linker's own sentence otherwise.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>

int main(int count, char **argument)
{
	void *library = count > 1 ? dlopen(argument[1], RTLD_NOW | RTLD_LOCAL) : NULL;
	struct link_map *map = NULL;
	int (*function)(unsigned);

	if (count < 2) {
		fputs("usage: probe-dlopen LIBRARY [FUNCTION]\n", stderr);
		return 2;
	}
	if (!library) {
		puts(dlerror());
		return 1;
	}
	if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0)
		printf("%s\n", map->l_name);
	if (count > 2) {
		*(void **)&function = dlsym(library, argument[2]);
		if (!function) {
			puts(dlerror());
			return 1;
		}
		printf("%d\n", function(0));
	}
	return 0;
}
