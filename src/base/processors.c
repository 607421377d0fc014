/*
 * processors.c - processors by the mask of the process and by the limits of control groups, of
 * version 2 (cpu.max) and 1 (cpu.cfs_quota_us). It keeps nothing. A limit that cannot be read is
 * none.
 */
#define _GNU_SOURCE
#include "base/processors.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_PATH 4096

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

/* The limits of a group and of those around it. In a container the group's path may be that of the
   host, where nothing is: what counts then stands at the root. */
static int32_t least_of(const char *root, char *path, bool v2)
{
    int64_t least = INT32_MAX, quota, period;
    for (;;) {
        if (read_quota(root, path, v2, &quota, &period))
            least = pi_min(least, pi_max(1, (quota + period / 2) / period));
        char *last = strrchr(path, '/');
        if (last == NULL)
            return (int32_t)least;
        *last = '\0';
    }
}

/* Whether a list, as "cpu,cpuacct", that ends before `end` has the controller of processors. */
static bool names_cpu(const char *list, const char *end)
{
    for (; list < end; list += strcspn(list, ",:") + 1)
        if (strncmp(list, "cpu,", 4) == 0 || strncmp(list, "cpu:", 4) == 0)
            return true;
    return false;
}

int32_t pi_processors_of_groups(const char *root, const char *self)
{
    char line[MAX_PATH];
    int64_t least = INT32_MAX;
    FILE *f = fopen(self, "re");
    if (f == NULL)
        return INT32_MAX;
    /* "0::/path" of version 2, "NUMBER:cpu,cpuacct:/path" of version 1. */
    while (fgets(line, sizeof(line), f) != NULL) {
        char *list = strchr(line, ':'), *path = list != NULL ? strchr(list + 1, ':') : NULL;
        if (path == NULL)
            continue;
        path[strcspn(path, "\n")] = '\0';
        bool v2 = path == list + 1;
        if (v2 || names_cpu(list + 1, path))
            least = pi_min(least, least_of(root, path + 1, v2));
    }
    fclose(f);
    return (int32_t)least;
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
    int32_t n = pi_processors_of_groups("/sys/fs/cgroup", "/proc/self/cgroup");
    return (int32_t)pi_min(n, processors_of_mask());
}

/* ---- the machine ---- */

/* The text behind a name and its colon in a file of the system; false: there is none. */
static bool read_value(const char *path, const char *name, char *out, size_t cap)
{
    FILE *f = fopen(path, "re");
    char line[256];
    bool found = false;
    while (f != NULL && !found && fgets(line, sizeof(line), f) != NULL) {
        char *colon = strchr(line, ':');
        found = strncmp(line, name, strlen(name)) == 0 && colon != NULL;
        if (found) {
            colon += 1 + strspn(colon + 1, " \t");
            colon[strcspn(colon, "\n")] = '\0';
            snprintf(out, cap, "%s", colon);
        }
    }
    if (f != NULL)
        fclose(f);
    return found;
}

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

void pi_memory_size(int64_t *total, int64_t *unused)
{
    *total = read_kib("/proc/meminfo", "MemTotal:");
    *unused = read_kib("/proc/meminfo", "MemAvailable:");
}

void pi_memory_resident(int64_t *own, int64_t *of_files)
{
    *own = read_kib("/proc/self/status", "RssAnon:");
    *of_files = read_kib("/proc/self/status", "RssFile:");
}
