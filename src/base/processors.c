/*
 * processors.c - processors by the mask of the process, and free memory by what the system has and
 * by the limits of the process. Both are bounded by control groups, of version 2 (cpu.max,
 * memory.max, memory.high) and 1 (cpu.cfs_quota_us, memory.limit_in_bytes). It keeps nothing. A
 * limit that cannot be read is none.
 */
#define _GNU_SOURCE
#include "base/processors.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define MAX_PATH 4096
#define GROUPS "/sys/fs/cgroup"
#define GROUPS_OF_SELF "/proc/self/cgroup"

/* The first line of root/middle/path/name in line; false where there is none. */
static bool read_line(const char *root, const char *middle, const char *path, const char *name,
                      char line[64])
{
    char full[MAX_PATH + 128];
    int n = snprintf(full, sizeof(full), "%s%s%s/%s", root, middle, path, name);
    FILE *f = n > 0 && (size_t)n < sizeof(full) ? fopen(full, "re") : NULL;
    if (f == NULL)
        return false;
    bool ok = fgets(line, 64, f) != NULL;
    fclose(f);
    return ok;
}

/* Microseconds that a group may compute in each period; false: no limit stands there. */
static bool read_quota(const char *root, const char *path, bool v2, int64_t *quota, int64_t *period)
{
    char line[64], *end = line;
    if (v2) {
        if (!read_line(root, "", path, "cpu.max", line))
            return false;
        *quota = strtoll(line, &end, 10); /* "max" is no number */
        *period = strtoll(end, NULL, 10);
    } else {
        if (!read_line(root, "/cpu", path, "cpu.cfs_quota_us", line))
            return false;
        *quota = strtoll(line, NULL, 10); /* -1: none */
        if (!read_line(root, "/cpu", path, "cpu.cfs_period_us", line))
            return false;
        *period = strtoll(line, NULL, 10);
    }
    return *quota > 0 && *period > 0;
}

/* The processors that a group allows; INT64_MAX: any. */
static int64_t read_processors(const char *root, const char *path, bool v2)
{
    int64_t quota, period;
    return read_quota(root, path, v2, &quota, &period) ? pi_max(1, (quota + period / 2) / period)
                                                       : INT64_MAX;
}

/* The text behind a name, blanks and a colon in a file of the system; false: there is none. */
static bool read_value(const char *path, const char *name, char *out, size_t cap)
{
    FILE *f = fopen(path, "re");
    char line[256];
    bool found = false;
    while (f != NULL && !found && fgets(line, sizeof(line), f) != NULL) {
        found = strncmp(line, name, strlen(name)) == 0;
        if (found) {
            char *text = line + strlen(name);
            text += strspn(text, " \t:");
            text[strcspn(text, "\n")] = '\0';
            snprintf(out, cap, "%s", text);
        }
    }
    if (f != NULL)
        fclose(f);
    return found;
}

/* Bytes that a group leaves between its limit and what it uses. Cached files that were not read
   of late count as free: the system drops them first. */
static int64_t read_left(const char *root, const char *path, bool v2)
{
    static const char *const limit[2][2] = {{"memory.limit_in_bytes", ""},
                                            {"memory.max", "memory.high"}};
    const char *middle = v2 ? "" : "/memory";
    char line[64], *end;
    int64_t most = INT64_MAX, used, files = 0;
    for (int i = 0; i < 2; i++) {
        if (limit[v2][i][0] == '\0' || !read_line(root, middle, path, limit[v2][i], line))
            continue;
        int64_t bytes = strtoll(line, &end, 10); /* "max" is no number */
        most = end > line && bytes >= 0 ? pi_min(most, bytes) : most;
    }
    const char *usage = v2 ? "memory.current" : "memory.usage_in_bytes";
    if (most == INT64_MAX || !read_line(root, middle, path, usage, line))
        return INT64_MAX;
    used = strtoll(line, NULL, 10);
    char stat[MAX_PATH + 128];
    int n = snprintf(stat, sizeof(stat), "%s%s%s/memory.stat", root, middle, path);
    if (n > 0 && (size_t)n < sizeof(stat) &&
        read_value(stat, v2 ? "inactive_file " : "total_inactive_file ", line, sizeof(line)))
        files = strtoll(line, NULL, 10);
    return pi_max(0, most - pi_max(0, used - files));
}

/* Whether a list, as "cpu,cpuacct", that ends before `end` has the controller. */
static bool names(const char *list, const char *end, const char *controller)
{
    size_t n = strlen(controller);
    for (; list < end; list += strcspn(list, ",:") + 1)
        if (strncmp(list, controller, n) == 0 && (list[n] == ',' || list[n] == ':'))
            return true;
    return false;
}

typedef int64_t bound_fn(const char *root, const char *path, bool v2);

/* The bounds of a group and of those around it. In a container the group's path may be that of the
   host, where nothing is: what counts then stands at the root. */
static int64_t least_upwards(const char *root, char *path, bool v2, bound_fn *bound)
{
    int64_t least = INT64_MAX;
    for (;;) {
        least = pi_min(least, bound(root, path, v2));
        char *last = strrchr(path, '/');
        if (last == NULL)
            return least;
        *last = '\0';
    }
}

/* The least bound that groups of a process and the groups around them have for a controller. */
static int64_t least_of_groups(const char *root, const char *self, const char *controller,
                               bound_fn *bound)
{
    char line[MAX_PATH];
    int64_t least = INT64_MAX;
    FILE *f = fopen(self, "re");
    if (f == NULL)
        return least;
    /* "0::/path" of version 2, "NUMBER:cpu,cpuacct:/path" of version 1. */
    while (fgets(line, sizeof(line), f) != NULL) {
        char *list = strchr(line, ':'), *path = list != NULL ? strchr(list + 1, ':') : NULL;
        if (path == NULL)
            continue;
        path[strcspn(path, "\n")] = '\0';
        bool v2 = path == list + 1;
        if (v2 || names(list + 1, path, controller))
            least = pi_min(least, least_upwards(root, path + 1, v2, bound));
    }
    fclose(f);
    return least;
}

int32_t pi_processors_of_groups(const char *root, const char *self)
{
    return (int32_t)pi_min(INT32_MAX, least_of_groups(root, self, "cpu", read_processors));
}

int64_t pi_memory_of_groups(const char *root, const char *self)
{
    return least_of_groups(root, self, "memory", read_left);
}

static int32_t processors_of_mask(void)
{
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        return CPU_COUNT(&set);
#endif
    return (int32_t)pi_max(1, sysconf(_SC_NPROCESSORS_ONLN));
}

int32_t pi_processors(void)
{
    int32_t n = pi_processors_of_groups(GROUPS, GROUPS_OF_SELF);
    return (int32_t)pi_min(n, processors_of_mask());
}

/* ---- the machine ---- */

void pi_processor_name(char *out, size_t cap)
{
    if (!read_value("/proc/cpuinfo", "model name", out, cap))
        snprintf(out, cap, "this machine's processor");
}

static int64_t read_kib(const char *path, const char *name)
{
    char text[64];
    return read_value(path, name, text, sizeof(text)) ? strtoll(text, NULL, 10) * 1024 : -1;
}

/* Bytes that a limit of the process leaves (ulimit -v, -d). */
static int64_t left_of_process(int limit, const char *used)
{
    struct rlimit most;
    if (getrlimit(limit, &most) != 0 || most.rlim_cur == RLIM_INFINITY ||
        most.rlim_cur > (rlim_t)INT64_MAX)
        return INT64_MAX;
    int64_t bytes = read_kib("/proc/self/status", used);
    return bytes < 0 ? INT64_MAX : pi_max(0, (int64_t)most.rlim_cur - bytes);
}

void pi_memory_size(int64_t *total, int64_t *unused)
{
    *total = read_kib("/proc/meminfo", "MemTotal:");
    *unused = read_kib("/proc/meminfo", "MemAvailable:");
    int64_t least = pi_memory_of_groups(GROUPS, GROUPS_OF_SELF);
    least = pi_min(least, left_of_process(RLIMIT_AS, "VmSize:"));
    least = pi_min(least, left_of_process(RLIMIT_DATA, "VmData:"));
    if (least < INT64_MAX)
        *unused = *unused < 0 ? least : pi_min(*unused, least);
}

void pi_memory_resident(int64_t *own, int64_t *of_files)
{
    *own = read_kib("/proc/self/status", "RssAnon:");
    *of_files = read_kib("/proc/self/status", "RssFile:");
}

int64_t pi_memory_resident_in(const void *data, size_t size)
{
    const uint64_t begin = (uint64_t)(uintptr_t)data, end = begin + size;
    char line[512];
    int64_t bytes = 0;
    bool within = false;
    FILE *f = fopen("/proc/self/smaps", "re");
    /* "7f00-7f10 r--p ..." begins an area, and "Rss: 4 kB" is one of its figures. */
    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        char *rest;
        uint64_t from = strtoull(line, &rest, 16);
        if (rest > line && *rest == '-')
            within = from < end && strtoull(rest + 1, NULL, 16) > begin;
        else if (within && strncmp(line, "Rss:", 4) == 0)
            bytes += strtoll(line + 4, NULL, 10) * 1024;
    }
    if (f != NULL)
        fclose(f);
    return pi_min(bytes, (int64_t)size);
}
