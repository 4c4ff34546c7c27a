/* peak.c - see peak.h. */
#include "peak.h"

#include <string.h>

double peak_tflops(const DeviceProperties *device, Dtype dtype, int eight_bits) {
    static const struct {
        int chip, tensor, fp32; /* compute capability x 10; FLOPs a clock and multiprocessor, 16-bit factors and fp32 */
    } CHIPS[] = {{75, 1024, 128}, {80, 2048, 128},  {86, 1024, 256},  {89, 1024, 256},
                 {90, 4096, 256}, {100, 8192, 256}, {103, 8192, 256}, {120, 1024, 256}};
    for (size_t i = 0; i < sizeof CHIPS / sizeof *CHIPS; i++) {
        if (CHIPS[i].chip != device->chip)
            continue;
        double flops = dtype == DTYPE_FP32 ? CHIPS[i].fp32 : CHIPS[i].tensor;
        if (dtype != DTYPE_FP32 && strstr(device->name, "GeForce"))
            flops /= 2; /* these sum in fp32 at half the rate of the same chip elsewhere */
        if (eight_bits && device->chip >= 89)
            flops *= 2;
        return flops * device->sm_count * device->clock_mhz * 1e-6;
    }
    return NAN;
}
