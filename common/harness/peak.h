/* peak.h - the most that a chip can compute: what a row's percentage is of. */
#ifndef FA_PEAK_H
#define FA_PEAK_H

#include "../device/device.h"
#include "../problem.h"

/* TFLOP/s of all multiprocessors at the highest clock. fp16 and bf16: dense products on tensor cores, summed in fp32; the same with
 * 8-bit factors if `eight_bits`, which chips before sm_89 multiply as 16-bit ones; fp32: multiply-adds on CUDA cores. It is the
 * chip's peak for that format, also for a variant that leaves the tensor cores alone. NAN: a chip that the table does not know, or
 * no GPU. FLOPs a clock and multiprocessor: CUDA C++ Programming Guide and the architectures' white papers. */
double peak_tflops(const DeviceProperties *device, Dtype dtype, int eight_bits);

#endif
