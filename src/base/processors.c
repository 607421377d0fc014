#define _GNU_SOURCE
#include "base/processors.h"

#include <sched.h>
#include <unistd.h>

int32_t pi_processors(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        return CPU_COUNT(&set);
    return (int32_t)pi_max(1, sysconf(_SC_NPROCESSORS_ONLN));
}
