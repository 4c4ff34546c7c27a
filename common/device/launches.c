/* launches.c - which kernels were launched, on either device. See device.h. */
#include "device.h"

#include <string.h>

static LaunchedKernel launched[MAX_LAUNCHED];
static int count, count_only;

void device_forget_launches(void) { count = 0; }
void device_count_only(int on) { count_only = on; }

/* LAUNCH((f<64>), ...) names the kernel "(f<64>)". */
int device_launched(const char *kernel, size_t blocks) {
    kernel += *kernel == '(';
    size_t length = strcspn(kernel, "<)");
    if (length >= sizeof launched->kernel)
        length = sizeof launched->kernel - 1;
    int i = 0;
    while (i < count && (strlen(launched[i].kernel) != length || strncmp(launched[i].kernel, kernel, length) != 0))
        i++;
    if (i < MAX_LAUNCHED) {
        memcpy(launched[i].kernel, kernel, length);
        launched[i].kernel[length] = 0;
        launched[i].blocks = blocks;
        count = i < count ? count : i + 1;
    }
    return !count_only;
}

int device_launches(const LaunchedKernel **kernels) {
    *kernels = launched;
    return count;
}
