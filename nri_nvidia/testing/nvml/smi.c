/* SPDX-License-Identifier: Apache-2.0 */
/* An nvidia-smi that can do `-L`: it lists what libnvidia-ml.so.1 tells. */
#include <dlfcn.h>
#include <stdio.h>

typedef int (*call)();

static void *library;

static call find(const char *name) {
    call found = (call)dlsym(library, name);
    if (!found) fprintf(stderr, "nvidia-smi: libnvidia-ml.so.1 has no %s\n", name);
    return found;
}

int main(void) {
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) {
        puts("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.");
        return 12;
    }
    call init = find("nvmlInit_v2"), count = find("nvmlDeviceGetCount_v2");
    call handle = find("nvmlDeviceGetHandleByIndex_v2"), name = find("nvmlDeviceGetName");
    call uuid = find("nvmlDeviceGetUUID");
    if (!init || !count || !handle || !name || !uuid) return 13;
    int result = init();
    if (result) {
        puts("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.");
        return result;
    }
    unsigned gpus = 0;
    count(&gpus);
    if (!gpus) puts("No devices found.");
    for (unsigned i = 0; i < gpus; i++) {
        char model[96] = "", id[96] = "";
        void *device = 0;
        if (handle(i, &device)) continue;
        name(device, model, 96u);
        uuid(device, id, 96u);
        printf("GPU %u: %s (UUID: %s)\n", i, model, id);
    }
    return 0;
}
