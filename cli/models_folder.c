/*
 * models_folder.c - the folder of pulled models: names, paths, the lock of a repository, and the
 * models that are there.
 */
#define _DEFAULT_SOURCE
#define _POSIX_C_SOURCE 200809L

#include "models_folder.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pith/policy.h"

/* ---- names ---- */

static const struct {
    const char *nick;
    const char *repo;
} nicks[] = {
    {"gemma-3-270m", "ggml-org/gemma-3-270m-it-GGUF"},
    {"gemma-3-1b", "ggml-org/gemma-3-1b-it-GGUF"},
    {"gemma-3-4b", "ggml-org/gemma-3-4b-it-GGUF"},
    {"gpt-oss-20b", "ggml-org/gpt-oss-20b-GGUF"},
    {"llama-3.2-1b", "bartowski/Llama-3.2-1B-Instruct-GGUF"},
    {"llama-3.2-3b", "bartowski/Llama-3.2-3B-Instruct-GGUF"},
    {"phi-3.5-mini", "bartowski/Phi-3.5-mini-instruct-GGUF"},
    {"qwen2.5-coder-0.5b", "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF"},
    {"qwen2.5-coder-1.5b", "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF"},
    {"qwen2.5-coder-7b", "Qwen/Qwen2.5-Coder-7B-Instruct-GGUF"},
    {"qwen3-0.6b", "Qwen/Qwen3-0.6B-GGUF"},
    {"qwen3-4b", "Qwen/Qwen3-4B-GGUF"},
    {"qwen3-8b", "Qwen/Qwen3-8B-GGUF"},
    {"smollm2", "HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF"},
    {"smollm2-135m", "bartowski/SmolLM2-135M-Instruct-GGUF"},
    {"smollm2-360m", "HuggingFaceTB/SmolLM2-360M-Instruct-GGUF"},
    {"smollm3", "ggml-org/SmolLM3-3B-GGUF"},
};
#define N_NICK (sizeof(nicks) / sizeof(nicks[0]))

const char *models_nick(size_t i, const char **repo)
{
    if (i >= N_NICK)
        return NULL;
    *repo = nicks[i].repo;
    return nicks[i].nick;
}

static bool is_word(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (!isalnum((unsigned char)text[i]) && strchr("._-", text[i]) == NULL)
            return false;
    return len > 0 && text[0] != '.';
}

/* Reads "NICK[:QUANT]" or "USER/REPO[:QUANT]"; false: it is neither. */
bool models_read_name(const char *text, struct model_name *out)
{
    size_t len = strcspn(text, ":");
    const char *quant = text[len] == ':' ? text + len + 1 : "";
    *out = (struct model_name){0};
    if (text[len] == ':' && (!is_word(quant, strlen(quant)) || strlen(quant) >= sizeof(out->quant)))
        return false;
    strcpy(out->quant, quant);
    for (size_t i = 0; i < N_NICK; i++)
        if (strncasecmp(text, nicks[i].nick, len) == 0 && nicks[i].nick[len] == '\0') {
            out->nick = nicks[i].nick;
            strcpy(out->repo, nicks[i].repo);
            return true;
        }
    size_t user = strcspn(text, "/");
    if (user >= len || !is_word(text, user) || !is_word(text + user + 1, len - user - 1) ||
        len >= sizeof(out->repo))
        return false;
    memcpy(out->repo, text, len);
    for (size_t i = 0; i < N_NICK; i++)
        if (strcasecmp(out->repo, nicks[i].repo) == 0)
            out->nick = nicks[i].nick;
    return true;
}

struct model_name models_parse(const char *option, const char *text, const char *file)
{
    const char *names[N_NICK], *near = NULL;
    struct model_name name;
    if (!models_read_name(text, &name)) {
        for (size_t i = 0; i < N_NICK; i++)
            names[i] = nicks[i].nick;
        near = pith_nearest(text, names, N_NICK);
        cli_fail_usage("%s: \"%.100s\" is neither USER/REPO[:QUANT] nor a short name%s%s%s", option,
                       text, near != NULL ? "; did you mean " : "", near != NULL ? near : "",
                       near != NULL ? "?" : ", which \"pith pull --list\" lists");
    }
    name.file = file;
    return name;
}

/* ---- the folder ---- */

char *models_join(const char *a, const char *between, const char *b)
{
    char *out = cli_alloc(strlen(a) + strlen(between) + strlen(b) + 1, 1);
    sprintf(out, "%s%s%s", a, between, b);
    return out;
}

/* The caller frees. */
char *models_folder(void)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (cache != NULL && cache[0] == '/')
        return models_join(cache, "/", "pith/models");
    if (home == NULL || home[0] == '\0')
        cli_fail("neither XDG_CACHE_HOME nor HOME says where models are kept");
    return models_join(home, "/", ".cache/pith/models");
}

/* "USER/REPO" as the name of a folder; the caller frees. */
char *models_repo_folder(const char *repo)
{
    const char *slash = strchr(repo, '/');
    char *folder = models_folder(), *user = strndup(repo, (size_t)(slash - repo));
    char *name = models_join(user, "--", slash + 1), *out = models_join(folder, "/", name);
    free(folder);
    free(user);
    free(name);
    return out;
}

/* Makes the folders that a path names, up to its last slash. */
void models_make_folders(const char *path)
{
    char *copy = models_join(path, "", "");
    for (char *at = copy + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = '\0';
        if (mkdir(copy, 0777) != 0 && errno != EEXIST)
            cli_fail("cannot make the folder \"%s\": %s", copy, strerror(errno));
        *at = '/';
    }
    free(copy);
}

/* Waits for other processes that write into the folder. */
int models_lock(const char *folder)
{
    char *path = models_join(folder, "/", ".lock");
    struct stat locked, now;
    for (;;) {
        models_make_folders(path);
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (fd < 0)
            cli_fail("cannot write \"%s\": %s", path, strerror(errno));
        if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
            cli_note("another pith writes in \"%s\": waiting for it", folder);
            while (flock(fd, LOCK_EX) != 0)
                if (cli_interrupted() || errno != EINTR)
                    cli_exit(EXIT_INTERRUPTED);
        }
        if (fstat(fd, &locked) == 0 && stat(path, &now) == 0 && locked.st_ino == now.st_ino) {
            free(path);
            return fd;
        }
        close(fd); /* the one who had the lock removed the folder */
    }
}

/* ---- what is there ---- */

const char *models_text(const json_t *json, const char *key)
{
    const char *text = json_string_value(json_object_get(json, key));
    return text != NULL ? text : "";
}

/* Bytes of all files; -1: one is missing. */
static int64_t count_bytes(const struct model_entry *e)
{
    const json_t *files = json_object_get(e->json, "files"), *file;
    char *folder = models_repo_folder(e->repo);
    int64_t size = 0;
    size_t i;
    json_array_foreach(files, i, file)
    {
        struct stat st;
        const char *name = json_string_value(file);
        char *path = models_join(folder, "/", name != NULL ? name : "");
        bool there = name != NULL && stat(path, &st) == 0;
        size = size < 0 || !there ? -1 : size + (int64_t)st.st_size;
        free(path);
    }
    free(folder);
    return json_array_size(files) > 0 ? size : -1;
}

/* Reads a model's JSON; a damaged file counts as absent. */
static bool read_entry(char *path, struct model_entry *out)
{
    struct model_name name;
    struct stat st;
    *out = (struct model_entry){.path = path, .json = json_load_file(path, 0, NULL)};
    out->repo = models_text(out->json, "repo");
    out->quant = models_text(out->json, "quant");
    if (stat(path, &st) != 0 || !models_read_name(out->repo, &name) ||
        strchr(out->repo, '/') == NULL) {
        json_decref(out->json);
        return false;
    }
    out->nick = name.nick != NULL ? name.nick : "";
    out->used = st.st_mtime;
    out->size = count_bytes(out);
    return true;
}

static int compare(const void *a, const void *b)
{
    return strcasecmp(((const struct model_entry *)a)->path, ((const struct model_entry *)b)->path);
}

struct model_entries models_read(void)
{
    struct model_entries all = {0};
    char *folder = models_folder();
    DIR *dir = opendir(folder);
    struct dirent *item;
    while (dir != NULL && (item = readdir(dir)) != NULL) {
        size_t len = strlen(item->d_name);
        struct model_entry e;
        if (len < 6 || strcmp(item->d_name + len - 5, ".json") != 0)
            continue;
        char *path = models_join(folder, "/", item->d_name);
        if (!read_entry(path, &e)) {
            free(path);
            continue;
        }
        all.entry = realloc(all.entry, (all.n + 1) * sizeof(e));
        if (all.entry == NULL)
            cli_fail("no memory for a list of %zu models", all.n);
        all.entry[all.n++] = e;
    }
    if (dir != NULL)
        closedir(dir);
    free(folder);
    if (all.n > 0)
        qsort(all.entry, all.n, sizeof(*all.entry), compare);
    return all;
}

void models_free(struct model_entries *all)
{
    for (size_t i = 0; i < all->n; i++) {
        json_decref(all->entry[i].json);
        free(all->entry[i].path);
    }
    free(all->entry);
}

/* The first file of a model that is there. */
static char *first_file(const struct model_entry *e)
{
    char *folder = models_repo_folder(e->repo);
    char *path = models_join(
        folder, "/", json_string_value(json_array_get(json_object_get(e->json, "files"), 0)));
    free(folder);
    return path;
}

/* Whether a model is the one that a name asks for. USER/REPO without a quant means the usual one,
   and the only one. */
static bool is_named(const struct model_entries *all, const struct model_entry *e,
                     const struct model_name *name)
{
    if (strcasecmp(e->repo, name->repo) != 0 || e->size < 0)
        return false;
    if (name->file != NULL)
        return strcmp(models_text(e->json, "asked"), name->file) == 0;
    if (name->quant[0] != '\0')
        return strcasecmp(e->quant, name->quant) == 0;
    size_t n = 0;
    for (size_t i = 0; i < all->n; i++)
        n += all->entry[i].size >= 0 && strcasecmp(all->entry[i].repo, name->repo) == 0;
    return n == 1 || strcasecmp(e->quant, MODELS_USUAL_QUANT) == 0;
}

const struct model_entry *models_find_entry(const struct model_entries *all,
                                            const struct model_name *name)
{
    for (size_t i = 0; i < all->n; i++)
        if (is_named(all, &all->entry[i], name))
            return &all->entry[i];
    return NULL;
}

/* The path of a pulled model, which counts as used now; NULL: it is not there. */
char *models_find_pulled(const struct model_name *name)
{
    struct model_entries all = models_read();
    const struct model_entry *e = models_find_entry(&all, name);
    char *path = e != NULL ? first_file(e) : NULL;
    if (e != NULL)
        utimensat(AT_FDCWD, e->path, NULL, 0);
    models_free(&all);
    return path;
}
