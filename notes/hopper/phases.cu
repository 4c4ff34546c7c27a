/* phases - two threads pass numbers through two stages, with two mbarriers each. No TMA, no bytes: phases alone.
 *
 * Number n goes through stage n % 2, as that stage's phase n / 2. A wait names the phase by its parity, even or odd:
 *
 *     full[stage]     the producer arrives: number n is there          the consumer waits for phase n / 2
 *     empty[stage]    the consumer arrives: number n is taken          the producer waits for phase n / 2 - 1, number n - 2's
 *
 * The program prints that table, and when each number was put and taken: both threads draw from one counter.
 *
 *     make hopper
 */
#include "primer.cuh"

constexpr int NUMBERS = 6, STAGES = 2;
HOST_DEVICE constexpr int stage(int n) { return n % STAGES; }
HOST_DEVICE constexpr int parity(int n) { return n / STAGES % 2; }

struct Shared {
    int number[STAGES], clock;
    Mbarrier full[STAGES], empty[STAGES];
};

__global__ void phases(int *put, int *taken, int *number) {
#ifdef HOPPER
    SHARED_MEMORY(shared, Shared);
    if (threadIdx.x == 0) {
        shared.clock = 0;
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(&shared.full[i], 1); /* of each phase: one arrival */
            mbarrier_init(&shared.empty[i], 1);
        }
        mbarrier_init_fence();
    }
    __syncthreads();

    if (threadIdx.x == 0) /* the producer */
        for (int n = 0; n < NUMBERS; n++) {
            mbarrier_wait(&shared.empty[stage(n)], parity(n) ^ 1);
            shared.number[stage(n)] = 10 * n;
            put[n] = atomicAdd(&shared.clock, 1);
            mbarrier_arrive(&shared.full[stage(n)]);
        }
    else if (threadIdx.x == 32) /* the consumer, in another warp */
        for (int n = 0; n < NUMBERS; n++) {
            mbarrier_wait(&shared.full[stage(n)], parity(n));
            taken[n] = atomicAdd(&shared.clock, 1);
            number[n] = shared.number[stage(n)];
            mbarrier_arrive(&shared.empty[stage(n)]);
        }
#endif
}

int main() {
    begin("phases");
    Array<int> put(NUMBERS, "put"), taken(NUMBERS, "taken"), number(NUMBERS, "number");
    LAUNCH(phases, 1, 64, sizeof(Shared), put.pointer, taken.pointer, number.pointer);
    const std::vector<int> putting = put.read(), taking = taken.read(), got = number.read();

    int wrong = 0;
    printf("n  stage  phase  consumer waits for  producer waits for           put  taken\n");
    for (int n = 0; n < NUMBERS; n++) {
        const char *at_once = n < STAGES ? ", at once" : "";
        printf("%d  %5d  %5d  full[%d], parity %d   empty[%d], parity %d%-9s  %3d  %5d\n", n, stage(n), n / STAGES, stage(n),
               parity(n), stage(n), parity(n) ^ 1, at_once, putting[n], taking[n]);
        wrong += got[n] != 10 * n || taking[n] < putting[n] || (n >= STAGES && putting[n] < taking[n - STAGES]);
    }
    return end(wrong);
}
