/* device_array.cuh - what the tests of instructions share: random bits, arrays on the device, and products once more. */
#ifndef FA_DEVICE_ARRAY_CUH
#define FA_DEVICE_ARRAY_CUH

#include "../common/gpu/kernel.cuh"

#include <vector>

static inline uint32_t random_bits() {
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u; /* Knuth's linear congruential generator */
    return (uint32_t)(state >> 32);
}

/* An array on the device that starts as a copy of `host` and can be read back. */
template <typename T> struct DeviceArray {
    size_t count;
    T *pointer;
    explicit DeviceArray(const std::vector<T> &host) : DeviceArray(host.size()) {
        device_write(pointer, host.data(), count * sizeof(T));
    }
    explicit DeviceArray(size_t count) : count(count), pointer((T *)device_alloc(count * sizeof(T), "test")) {}
    DeviceArray(const DeviceArray &) = delete;
    ~DeviceArray() { device_free(pointer); }
    std::vector<T> read() const {
        std::vector<T> host(count);
        device_read(host.data(), pointer, count * sizeof(T));
        return host;
    }
};

/* How many elements of D = A B are wrong: a(m, k), b(k, n). */
template <typename A, typename B> static int wrong_products(const float *d, int rows, int columns, int length, A a, B b) {
    int wrong = 0;
    for (int m = 0; m < rows; m++)
        for (int n = 0; n < columns; n++) {
            float want = 0;
            for (int k = 0; k < length; k++)
                want += a(m, k) * b(k, n);
            wrong += !(d[m * columns + n] == want);
        }
    return wrong;
}

#endif
