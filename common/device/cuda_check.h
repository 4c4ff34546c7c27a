/* cuda_check.h - for the two files that call the CUDA runtime: every call is checked. */
#ifndef FA_CUDA_CHECK_H
#define FA_CUDA_CHECK_H

#include <cuda_runtime.h>

/* Ends the program with one line unless the call succeeded. device_cuda.cu. */
void device_check(cudaError_t error, const char *call, const char *file, int line);
#define CHECK(call) device_check(call, #call, __FILE__, __LINE__)

/* Where kernels go on the device that is used now. NULL: device 0, which has device_cuda.cu's own queue. */
extern cudaStream_t queue_in_use;

#endif
