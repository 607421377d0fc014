/*
 * kernels.h - how a group's file makes kernels of its list, for nvcc. A kernel's name has a prefix,
 * and it begins with GRID_WAIT where it does not call that itself. It is the last thing included.
 */
#define ENTRY(name, threads, per_sm, type, begin)                                                  \
    extern "C" __global__ void __launch_bounds__(threads, per_sm)                                  \
        pi_##name(const __grid_constant__ type a)                                                  \
    {                                                                                              \
        begin;                                                                                     \
        name(a);                                                                                   \
    }
#define BEGIN                                                                                      \
    do {                                                                                           \
        GRID_WAIT();                                                                               \
        GRID_GO();                                                                                 \
    } while (0)
#define GPU_K(name, threads, per_sm, type) ENTRY(name, threads, per_sm, type, BEGIN)
#undef GPU_K_WAITS
#define GPU_K_WAITS(name, threads, per_sm, type) ENTRY(name, threads, per_sm, type, )
