/* SPDX-License-Identifier: Apache-2.0 */
/* A libcuda without a GPU behind it: it loads, tells its version and finds no device. */

enum { CUDA_ERROR_NOT_INITIALIZED = 3, CUDA_ERROR_NO_DEVICE = 100 };

int cuInit(unsigned flags) {
    (void)flags;
    return CUDA_ERROR_NO_DEVICE;
}

int cuDriverGetVersion(int *version) {
    *version = SIM_CUDA_VERSION;
    return 0;
}

int cuDeviceGetCount(int *count) {
    *count = 0;
    return CUDA_ERROR_NOT_INITIALIZED;
}
