/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libnvidia-ml without a GPU: it answers from the nvml.json of a simulated host.
 *
 * The document is found by the variable NRI_NVIDIA_SIM_NVML, else by climbing from this library's
 * own place to a directory that holds nvml.json; without one there is "no driver". Faults come
 * from the variable NRI_NVIDIA_SIM_NVML_FAULT, else from a file nvml.fault beside the document:
 *   hang     nvmlInit never returns            crash   nvmlInit ends in SIGSEGV
 *   init=N   nvmlInit answers N                lost=N  GPU N has fallen off the bus
 *   drop=N   GPU N is not listed, and those behind it move up
 *   noisy    prints a line on stdout           flood   prints 2 MiB on stdout
 *
 * Numbers of constants and the layout of structures follow NVIDIA's public nvml.h.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    GPU_IS_LOST = 15,
};

enum { MAX_GPUS = 64, MAX_MIG = 16, TEXT = 128 };

struct device {
    struct device *parent; /* NULL for a GPU, the GPU for a MIG device */
    int index, minor, mig_enabled, gi, ci, mig_count, lost;
    unsigned long long memory;
    char uuid[TEXT], bus_id[TEXT], name[TEXT], brand[TEXT], architecture[TEXT], capability[TEXT];
    struct device *mig[MAX_MIG];
};

static struct device gpus[MAX_GPUS];
static struct device instances[MAX_GPUS * MAX_MIG];
static int gpu_count, instance_count, initialized;
static char driver_version[TEXT], cuda_version[TEXT], directory[PATH_MAX];

/* --- the document ------------------------------------------------------------------------- */

static const char *cursor;

static void blank(void) { while (*cursor && strchr(" \t\r\n", *cursor)) cursor++; }

static int accept(char c) {
    blank();
    if (*cursor != c) return 0;
    cursor++;
    return 1;
}

static void read_text(char *out, size_t size) {
    size_t used = 0;
    while (*cursor && *cursor != '"') {
        if (*cursor == '\\' && cursor[1]) cursor++;
        if (used + 1 < size) out[used++] = *cursor;
        cursor++;
    }
    if (*cursor) cursor++;
    out[used] = 0;
}

/* Reads the next value: a string, a number or a word goes to `out` as text; of an object or an
   array only the opening is eaten, and its character returned. */
static char value(char *out, size_t size) {
    blank();
    out[0] = 0;
    if (accept('"')) { read_text(out, size); return '"'; }
    if (*cursor == '{' || *cursor == '[') return *cursor++;
    size_t used = 0;
    while (*cursor && !strchr(",]} \t\r\n", *cursor)) {
        if (used + 1 < size) out[used++] = *cursor;
        cursor++;
    }
    out[used] = 0;
    return 'v';
}

static void skip(char kind) {
    char ignored[TEXT];
    if (kind != '{' && kind != '[') return;
    char end = kind == '{' ? '}' : ']';
    while (*cursor && !accept(end)) {
        if (accept(',') || accept(':')) continue;
        skip(value(ignored, sizeof ignored));
    }
}

static int key(char *out, size_t size) {
    accept(',');
    if (!accept('"')) { accept('}'); return 0; }
    read_text(out, size);
    return accept(':');
}

static void read_device(struct device *device);

static void read_devices(struct device *parent) {
    char ignored[TEXT];
    while (*cursor && !accept(']')) {
        if (accept(',')) continue;
        if (value(ignored, sizeof ignored) != '{') continue;
        struct device *device = NULL;
        if (!parent && gpu_count < MAX_GPUS) {
            device = &gpus[gpu_count++];
        } else if (parent && parent->mig_count < MAX_MIG && instance_count < MAX_GPUS * MAX_MIG) {
            device = &instances[instance_count++];
            parent->mig[parent->mig_count++] = device;
        }
        if (!device) { skip('{'); continue; }
        device->parent = parent;
        device->minor = -1;
        read_device(device);
    }
}

static void read_device(struct device *device) {
    char name[TEXT], text[TEXT];
    while (key(name, sizeof name)) {
        char kind = value(text, sizeof text);
        if (!strcmp(name, "mig_devices") && kind == '[') { read_devices(device); continue; }
        skip(kind);
        if (!strcmp(name, "index")) device->index = atoi(text);
        if (!strcmp(name, "minor")) device->minor = atoi(text);
        if (!strcmp(name, "gi")) device->gi = atoi(text);
        if (!strcmp(name, "ci")) device->ci = atoi(text);
        if (!strcmp(name, "mig_enabled")) device->mig_enabled = !strcmp(text, "true");
        if (!strcmp(name, "memory_bytes")) device->memory = strtoull(text, NULL, 10);
        if (!strcmp(name, "uuid")) strcpy(device->uuid, text);
        if (!strcmp(name, "bus_id")) strcpy(device->bus_id, text);
        if (!strcmp(name, "name") || !strcmp(name, "profile")) strcpy(device->name, text);
        if (!strcmp(name, "brand")) strcpy(device->brand, text);
        if (!strcmp(name, "architecture")) strcpy(device->architecture, text);
        if (!strcmp(name, "compute_capability")) strcpy(device->capability, text);
    }
}

static void read_document(const char *text) {
    char name[TEXT], out[TEXT];
    cursor = text;
    gpu_count = instance_count = 0;
    memset(gpus, 0, sizeof gpus);
    memset(instances, 0, sizeof instances);
    if (!accept('{')) return;
    while (key(name, sizeof name)) {
        char kind = value(out, sizeof out);
        if (!strcmp(name, "gpus") && kind == '[') { read_devices(NULL); continue; }
        skip(kind);
        if (!strcmp(name, "driver_version")) strcpy(driver_version, out);
        if (!strcmp(name, "cuda_version")) strcpy(cuda_version, out);
    }
}

/* --- files and faults ---------------------------------------------------------------------- */

static char *slurp(const char *path) {
    FILE *file = fopen(path, "re");
    if (!file) return NULL;
    size_t size = 1 << 20;
    char *text = calloc(1, size + 1);
    if (text) text[fread(text, 1, size, file)] = 0;
    fclose(file);
    return text;
}

static char *find_document(void) {
    char path[PATH_MAX + 16];
    const char *given = getenv("NRI_NVIDIA_SIM_NVML");
    Dl_info info;
    if (given) {
        snprintf(directory, sizeof directory, "%s", given);
        char *slash = strrchr(directory, '/');
        if (slash) *slash = 0;
        return slurp(given);
    }
    if (!dladdr((void *)find_document, &info) || !realpath(info.dli_fname, directory)) return NULL;
    for (char *slash; (slash = strrchr(directory, '/'));) {
        *slash = 0;
        snprintf(path, sizeof path, "%s/nvml.json", directory);
        char *text = slurp(path);
        if (text) return text;
    }
    return NULL;
}

static char *find_fault(void) {
    char path[PATH_MAX + 16];
    const char *given = getenv("NRI_NVIDIA_SIM_NVML_FAULT");
    if (given) return strdup(given);
    snprintf(path, sizeof path, "%s/nvml.fault", directory);
    return slurp(path);
}

static int apply_fault(const char *fault) {
    if (!strncmp(fault, "hang", 4)) for (;;) pause();
    if (!strncmp(fault, "crash", 5)) { signal(SIGSEGV, SIG_DFL); raise(SIGSEGV); }
    if (!strncmp(fault, "noisy", 5)) { puts("NVML: this line is not part of any document"); }
    if (!strncmp(fault, "flood", 5)) for (int i = 0; i < 1 << 17; i++) fputs("0123456789abcdef", stdout);
    fflush(stdout);
    if (!strncmp(fault, "init=", 5)) return atoi(fault + 5);
    if (!strncmp(fault, "drop=", 5)) {
        for (int i = 0; i < gpu_count; i++) {
            if (gpus[i].index == atoi(fault + 5)) gpus[i].index = -1;
            else if (gpus[i].index > atoi(fault + 5)) gpus[i].index--;
        }
    }
    if (!strncmp(fault, "lost=", 5)) {
        for (int i = 0; i < gpu_count; i++) gpus[i].lost = gpus[i].index == atoi(fault + 5);
    }
    return SUCCESS;
}

/* --- what pynvml calls --------------------------------------------------------------------- */

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    char *text = find_document();
    if (!text) return DRIVER_NOT_LOADED;
    read_document(text);
    free(text);
    char *fault = find_fault();
    int result = fault ? apply_fault(fault) : SUCCESS;
    free(fault);
    initialized = result == SUCCESS;
    return result;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlInit(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { initialized = 0; return SUCCESS; }

const char *nvmlErrorString(int code) {
    switch (code) {
    case SUCCESS: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case GPU_IS_LOST: return "GPU is lost";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}

static int copy(char *out, unsigned size, const char *text) {
    if (strlen(text) >= size) return INSUFFICIENT_SIZE;
    strcpy(out, text);
    return SUCCESS;
}

int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    return initialized ? copy(out, size, driver_version) : UNINITIALIZED;
}

int nvmlSystemGetCudaDriverVersion_v2(int *out) {
    int major = 0, minor = 0;
    if (sscanf(cuda_version, "%d.%d", &major, &minor) != 2) return NOT_SUPPORTED;
    *out = major * 1000 + minor * 10;
    return SUCCESS;
}

int nvmlSystemGetCudaDriverVersion(int *out) { return nvmlSystemGetCudaDriverVersion_v2(out); }

/* Indexes may have gaps in the document (a GPU that could not be described): those are lost. */
static int last_index(void) {
    int last = -1;
    for (int i = 0; i < gpu_count; i++) if (gpus[i].index > last) last = gpus[i].index;
    return last;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    if (!initialized) return UNINITIALIZED;
    *count = (unsigned)(last_index() + 1);
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **out) {
    if (!initialized) return UNINITIALIZED;
    if ((int)index > last_index()) return INVALID_ARGUMENT;
    for (int i = 0; i < gpu_count; i++) {
        if (gpus[i].index != (int)index || gpus[i].lost) continue;
        *out = &gpus[i];
        return SUCCESS;
    }
    return GPU_IS_LOST;
}

int nvmlDeviceGetUUID(struct device *device, char *out, unsigned size) {
    return copy(out, size, device->uuid);
}

int nvmlDeviceGetMinorNumber(struct device *device, unsigned *out) {
    if (device->minor < 0) return NOT_SUPPORTED;
    *out = (unsigned)device->minor;
    return SUCCESS;
}

/* A MIG device is named after its GPU: "NVIDIA H100 80GB HBM3 MIG 1g.10gb". */
int nvmlDeviceGetName(struct device *device, char *out, unsigned size) {
    char text[3 * TEXT];
    if (!device->parent) return copy(out, size, device->name);
    snprintf(text, sizeof text, "%s MIG %s", device->parent->name, device->name);
    return copy(out, size, text);
}

struct pci {
    char legacy_bus_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};

int nvmlDeviceGetPciInfo_v3(struct device *device, struct pci *out) {
    memset(out, 0, sizeof *out);
    if (sscanf(device->bus_id, "%x:%x:%x", &out->domain, &out->bus, &out->device) != 3)
        return NOT_SUPPORTED;
    snprintf(out->legacy_bus_id, sizeof out->legacy_bus_id, "%04X:%02X:%02X.0",
             out->domain & 0xffff, out->bus & 0xff, out->device & 0xff);
    return copy(out->bus_id, sizeof out->bus_id, device->bus_id);
}

static int word(const char *text, const char *const *words, int *out) {
    for (int i = 0; words[i]; i++) if (!strcmp(words[i], text)) { *out = i; return SUCCESS; }
    return NOT_SUPPORTED;
}

int nvmlDeviceGetBrand(struct device *device, int *out) {
    static const char *const words[] = {
        "unknown", "quadro", "tesla", "nvs", "grid", "geforce", "titan", "nvidia_vapps",
        "nvidia_vpc", "nvidia_vcs", "nvidia_vws", "nvidia_cloud_gaming", "quadro_rtx",
        "nvidia_rtx", "nvidia", "geforce_rtx", "titan_rtx", NULL};
    return word(device->brand, words, out);
}

int nvmlDeviceGetArchitecture(struct device *device, int *out) {
    static const char *const words[] = {
        "", "", "kepler", "maxwell", "pascal", "volta", "turing", "ampere", "ada", "hopper",
        "blackwell", NULL};
    return word(device->architecture, words, out);
}

int nvmlDeviceGetCudaComputeCapability(struct device *device, int *major, int *minor) {
    return sscanf(device->capability, "%d.%d", major, minor) == 2 ? SUCCESS : NOT_SUPPORTED;
}

struct memory { unsigned long long total, free, used; };

int nvmlDeviceGetMemoryInfo(struct device *device, struct memory *out) {
    if (!device->memory) return NOT_SUPPORTED;
    *out = (struct memory){device->memory, device->memory, 0};
    return SUCCESS;
}

int nvmlDeviceGetMigMode(struct device *device, unsigned *current, unsigned *pending) {
    if (device->parent) return INVALID_ARGUMENT;
    *current = *pending = (unsigned)device->mig_enabled;
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(struct device *device, unsigned *out) {
    *out = device->parent ? 0 : 7;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(struct device *device, unsigned index, struct device **out) {
    for (int i = 0; i < device->mig_count; i++) {
        if (device->mig[i]->index != (int)index) continue;
        *out = device->mig[i];
        return SUCCESS;
    }
    return NOT_FOUND;
}

int nvmlDeviceGetGpuInstanceId(struct device *device, unsigned *out) {
    *out = (unsigned)device->gi;
    return device->parent ? SUCCESS : NOT_FOUND;
}

int nvmlDeviceGetComputeInstanceId(struct device *device, unsigned *out) {
    *out = (unsigned)device->ci;
    return device->parent ? SUCCESS : NOT_FOUND;
}
