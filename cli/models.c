/*
 * models.c - the folder of pulled models: what is in it, what goes into it, `pith models`.
 *
 * Invariant: a model's file of JSON is written when all of its files are there and right, and goes
 * before them. Whoever writes in a repository's folder holds its lock.
 */
#define _DEFAULT_SOURCE
#define _POSIX_C_SOURCE 200809L

#include "models.h"

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
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "command.h"
#include "hub.h"
#include "pith/policy.h"

#define USUAL_QUANT "Q4_K_M"
#define SUFFIX ".gguf"

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
static bool read_name(const char *text, struct model_name *out)
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
    if (!read_name(text, &name)) {
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

static char *join(const char *a, const char *between, const char *b)
{
    char *out = cli_alloc(strlen(a) + strlen(between) + strlen(b) + 1, 1);
    sprintf(out, "%s%s%s", a, between, b);
    return out;
}

/* The caller frees. */
static char *models_folder(void)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (cache != NULL && cache[0] == '/')
        return join(cache, "/", "pith/models");
    if (home == NULL || home[0] == '\0')
        cli_fail("neither XDG_CACHE_HOME nor HOME says where models are kept");
    return join(home, "/", ".cache/pith/models");
}

/* "USER/REPO" as the name of a folder; the caller frees. */
static char *repo_folder(const char *repo)
{
    const char *slash = strchr(repo, '/');
    char *folder = models_folder(), *user = strndup(repo, (size_t)(slash - repo));
    char *name = join(user, "--", slash + 1), *out = join(folder, "/", name);
    free(folder);
    free(user);
    free(name);
    return out;
}

/* Makes the folders that a path names, up to its last slash. */
static void make_folders(const char *path)
{
    char *copy = join(path, "", "");
    for (char *at = copy + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = '\0';
        if (mkdir(copy, 0777) != 0 && errno != EEXIST)
            cli_fail("cannot make the folder \"%s\": %s", copy, strerror(errno));
        *at = '/';
    }
    free(copy);
}

/* Waits for whoever else writes into the folder. */
static int lock_folder(const char *folder)
{
    char *path = join(folder, "/", ".lock");
    make_folders(path);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        cli_fail("cannot write \"%s\": %s", path, strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        cli_note("another pith writes in \"%s\": waiting for it", folder);
        while (flock(fd, LOCK_EX) != 0)
            if (cli_interrupted() || errno != EINTR)
                cli_exit(EXIT_INTERRUPTED);
    }
    free(path);
    return fd;
}

/* ---- what is there ---- */

struct model_entry {
    char *path; /* of its JSON */
    json_t *json;
    const char *repo;
    const char *quant;
    const char *nick; /* "": none */
    int64_t size;
    time_t used;
};

struct model_entries {
    struct model_entry *entry; /* [n] by name */
    size_t n;
};

static const char *text_of(const json_t *json, const char *key)
{
    const char *text = json_string_value(json_object_get(json, key));
    return text != NULL ? text : "";
}

/* Bytes of all files; -1: one is missing. */
static int64_t count_bytes(const struct model_entry *e)
{
    const json_t *files = json_object_get(e->json, "files"), *file;
    char *folder = repo_folder(e->repo);
    int64_t size = 0;
    size_t i;
    json_array_foreach(files, i, file)
    {
        struct stat st;
        char *path =
            join(folder, "/", json_string_value(file) != NULL ? json_string_value(file) : "");
        size = size < 0 || stat(path, &st) != 0 ? -1 : size + (int64_t)st.st_size;
        free(path);
    }
    free(folder);
    return json_array_size(files) > 0 ? size : -1;
}

/* Reads a model's JSON; what somebody broke is as if it were not there. */
static bool read_entry(char *path, struct model_entry *out)
{
    struct model_name name;
    struct stat st;
    *out = (struct model_entry){.path = path, .json = json_load_file(path, 0, NULL)};
    out->repo = text_of(out->json, "repo");
    out->quant = text_of(out->json, "quant");
    if (stat(path, &st) != 0 || !read_name(out->repo, &name) || strchr(out->repo, '/') == NULL) {
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

static struct model_entries read_entries(void)
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
        char *path = join(folder, "/", item->d_name);
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

static void free_entries(struct model_entries *all)
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
    char *folder = repo_folder(e->repo);
    char *path =
        join(folder, "/", json_string_value(json_array_get(json_object_get(e->json, "files"), 0)));
    free(folder);
    return path;
}

/* Whether a model is what a name asks for: of several quants of a repository USER/REPO means the
   usual one, and the only one. */
static bool is_named(const struct model_entries *all, const struct model_entry *e,
                     const struct model_name *name)
{
    if (strcasecmp(e->repo, name->repo) != 0 || e->size < 0)
        return false;
    if (name->file != NULL)
        return strcmp(text_of(e->json, "asked"), name->file) == 0;
    if (name->quant[0] != '\0')
        return strcasecmp(e->quant, name->quant) == 0;
    size_t n = 0;
    for (size_t i = 0; i < all->n; i++)
        n += all->entry[i].size >= 0 && strcasecmp(all->entry[i].repo, name->repo) == 0;
    return n == 1 || strcasecmp(e->quant, USUAL_QUANT) == 0;
}

static const struct model_entry *find_entry(const struct model_entries *all,
                                            const struct model_name *name)
{
    for (size_t i = 0; i < all->n; i++)
        if (is_named(all, &all->entry[i], name))
            return &all->entry[i];
    return NULL;
}

/* The path of a pulled model, which counts as used now; NULL: it is not there. */
static char *find_pulled(const struct model_name *name)
{
    struct model_entries all = read_entries();
    const struct model_entry *e = find_entry(&all, name);
    char *path = e != NULL ? first_file(e) : NULL;
    if (e != NULL)
        utimensat(AT_FDCWD, e->path, NULL, 0);
    free_entries(&all);
    return path;
}

/* ---- choosing files ---- */

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

static const char *find_word(const char *text, const char *word)
{
    size_t len = strlen(word);
    for (; *text != '\0'; text++)
        if (strncasecmp(text, word, len) == 0)
            return text;
    return NULL;
}

/* A model's weights, not what goes beside them. */
static bool is_model(const char *path)
{
    size_t len = strlen(path);
    const char *name = base_name(path);
    return len > strlen(SUFFIX) && strcasecmp(path + len - strlen(SUFFIX), SUFFIX) == 0 &&
           find_word(name, "mmproj") == NULL && find_word(name, "imatrix") == NULL;
}

/* Whether a file's name has the quant as a word of its own: "Q4_K" is not in "x-Q4_K_M.gguf". */
static bool has_quant(const char *path, const char *quant)
{
    const char *name = base_name(path), *at = name;
    while ((at = find_word(at, quant)) != NULL) {
        const char *end = at + strlen(quant);
        if ((at == name || strchr("-._", at[-1]) != NULL) && strchr("-.", *end) != NULL)
            return true;
        at++;
    }
    return false;
}

/* "NAME-00002-of-00005.gguf": where "-00002" stands, its numbers; NULL: the model is one file. */
static const char *find_part(const char *path, int *i, int *n)
{
    int used = 0;
    size_t len = strlen(path), tail = strlen("-00001-of-00002.gguf");
    if (len <= tail)
        return NULL;
    const char *at = path + len - tail;
    if (sscanf(at, "-%5d-of-%5d%n", i, n, &used) != 2 || used != 15 || *i < 1 || *n < 2 || *i > *n)
        return NULL;
    return at;
}

/* The quant that a file's name ends with, as it writes it, into buf [64]. */
static const char *quant_of(const char *path, char *buf)
{
    int i, n;
    const char *name = base_name(path), *end = find_part(path, &i, &n);
    if (end == NULL)
        end = path + strlen(path) - strlen(SUFFIX);
    const char *at = end;
    while (at > name && at[-1] != '-' && at[-1] != '.')
        at--;
    snprintf(buf, 64, "%.*s", (int)(end - at), at);
    return buf;
}

/* The quants of a repository as "Q4_K_M, Q8_0" into buf. */
static void list_quants(const struct hub_list *list, char *buf, size_t cap)
{
    char quant[64], last[64] = "";
    size_t len = 0;
    buf[0] = '\0';
    for (size_t i = 0; i < list->n && len + 70 < cap; i++) {
        if (!is_model(list->file[i].path) || strcmp(quant_of(list->file[i].path, quant), last) == 0)
            continue;
        len += (size_t)snprintf(buf + len, cap - len, "%s%s", len > 0 ? ", " : "", quant);
        strcpy(last, quant);
    }
}

static const struct hub_file *find_file(const struct hub_list *list, const char *path)
{
    for (size_t i = 0; i < list->n; i++)
        if (strcmp(list->file[i].path, path) == 0)
            return &list->file[i];
    return NULL;
}

/* The first file that has the quant; NULL: none. "": any. */
static const struct hub_file *find_quant(const struct hub_list *list, const char *quant)
{
    for (size_t i = 0; i < list->n; i++)
        if (is_model(list->file[i].path) &&
            (quant[0] == '\0' || has_quant(list->file[i].path, quant)))
            return &list->file[i];
    return NULL;
}

static const struct hub_file *choose(const struct hub_list *list, const struct model_name *name)
{
    char quants[400];
    if (name->file != NULL) {
        const struct hub_file *file = find_file(list, name->file);
        if (file == NULL)
            cli_fail("%s: it has no file \"%s\"", name->repo, name->file);
        return file;
    }
    const struct hub_file *file = find_quant(list, name->quant[0] ? name->quant : USUAL_QUANT);
    if (file == NULL && name->quant[0] == '\0')
        file = find_quant(list, "");
    if (file != NULL)
        return file;
    list_quants(list, quants, sizeof(quants));
    if (quants[0] == '\0')
        cli_fail("%s: it holds no model as GGUF", name->repo);
    cli_fail("%s: it has no file of quant %s, but %s", name->repo, name->quant, quants);
}

/* ---- pulling ---- */

/* The files of the model that file begins or is a part of. */
static const struct hub_file **list_parts(const struct hub_list *list,
                                          const struct model_name *name,
                                          const struct hub_file *file, int *n)
{
    int which;
    const char *at = find_part(file->path, &which, n);
    if (at == NULL)
        *n = 1;
    const struct hub_file **parts = cli_alloc((size_t)*n, sizeof(*parts));
    parts[0] = file;
    for (int i = 0; at != NULL && i < *n; i++) {
        char *path = cli_alloc(strlen(file->path) + 32, 1);
        sprintf(path, "%.*s-%05d-of-%05d%s", (int)(at - file->path), file->path, i + 1, *n,
                file->path + strlen(file->path) - strlen(SUFFIX));
        parts[i] = find_file(list, path);
        if (parts[i] == NULL)
            cli_fail("%s: the file \"%s\" is missing there", name->repo, path);
        free(path);
    }
    return parts;
}

/* Whether a file is there that was pulled with this sum. */
static bool is_pulled(const json_t *before, const char *path, const struct hub_file *file)
{
    struct stat st;
    const char *sum = text_of(json_object_get(before, "sums"), file->path);
    return stat(path, &st) == 0 && (int64_t)st.st_size == file->size && file->sum[0] != '\0' &&
           strcmp(sum, file->sum) == 0;
}

static void check_room(const char *folder, int64_t bytes)
{
    struct statvfs fs;
    char want[32], have[32];
    if (bytes <= 0 || statvfs(folder, &fs) != 0)
        return;
    int64_t n_free = (int64_t)fs.f_bavail * (int64_t)fs.f_frsize;
    if (n_free < bytes)
        cli_fail("the model takes %s in \"%s\", where %s are free", cli_bytes(bytes, want), folder,
                 cli_bytes(n_free, have));
}

static char *entry_path(const struct model_name *name, const char *quant, const char *first)
{
    char *folder = repo_folder(name->repo);
    char *what = join(name->file != NULL ? first : quant, "", "");
    for (char *at = what; *at != '\0'; at++)
        *at = *at == '/' ? '-' : *at;
    char *left = join(folder, "--", what), *out = join(left, "", ".json");
    free(folder);
    free(what);
    free(left);
    return out;
}

static void write_entry(const char *path, json_t *json)
{
    char *made = join(path, "", ".new");
    int failed = json_dump_file(json, made, JSON_INDENT(1));
    if (failed || rename(made, path) != 0)
        cli_fail("cannot write \"%s\": %s", path, strerror(errno));
    free(made);
}

/* Fetches what is not there; returns the path of the first. */
static char *fetch(const struct model_name *name, const struct hub_file **parts, int n, bool quiet)
{
    char quant[64], size[32], *folder = repo_folder(name->repo), *first = NULL;
    int lock = lock_folder(folder);
    char *json_path = entry_path(name, quant_of(parts[0]->path, quant), parts[0]->path);
    json_t *before = json_load_file(json_path, 0, NULL);
    json_t *files = json_array(), *sums = json_object();
    int64_t missing = 0, all = 0;
    for (int i = 0; i < n; i++) {
        char *path = join(folder, "/", parts[i]->path);
        missing += is_pulled(before, path, parts[i]) ? 0 : parts[i]->size;
        all += parts[i]->size;
        free(path);
    }
    check_room(folder, missing);
    for (int i = 0; i < n; i++) {
        char *path = join(folder, "/", parts[i]->path);
        make_folders(path);
        if (!is_pulled(before, path, parts[i]))
            hub_fetch(name->repo, parts[i], path);
        json_array_append_new(files, json_string(parts[i]->path));
        json_object_set_new(sums, parts[i]->path, json_string(parts[i]->sum));
        first = i == 0 ? path : first;
        if (i > 0)
            free(path);
    }
    json_t *json =
        json_pack("{s:s, s:s, s:s, s:o, s:o}", "repo", name->repo, "quant", quant, "asked",
                  name->file != NULL ? name->file : "", "files", files, "sums", sums);
    if (json == NULL)
        cli_fail("no memory for a model's entry");
    write_entry(json_path, json);
    if (!quiet)
        cli_note("%s:%s, %s, %s", name->repo, quant, cli_bytes(all, size),
                 missing > 0 ? "is here" : "was here already");
    json_decref(json);
    json_decref(before);
    close(lock);
    free(json_path);
    free(folder);
    return first;
}

char *models_pull(const struct model_name *name, bool quiet)
{
    int n;
    cli_interrupt_catch();
    struct hub_list list = hub_list(name->repo);
    const struct hub_file *file = choose(&list, name);
    const struct hub_file **parts = list_parts(&list, name, file, &n);
    char *path = fetch(name, parts, n, quiet);
    free(parts);
    hub_list_free(&list);
    return path;
}

/* ---- what options name ---- */

char *models_find(const char *text)
{
    struct model_name name;
    char *path = NULL;
    if (access(text, F_OK) == 0 || !read_name(text, &name))
        return join(text, "", "");
    path = find_pulled(&name);
    if (path == NULL && strchr(text, '/') == NULL)
        cli_fail("%s: it is not here yet; \"pith pull %s\" fetches it", text, text);
    return path != NULL ? path : join(text, "", "");
}

char *models_resolve(const struct model_options *o)
{
    if (o->hf_file != NULL && o->hf == NULL)
        cli_fail_usage("--hf-file names a file of --hf-repo, which is not given");
    if (o->hf != NULL && o->path != NULL)
        cli_fail_usage("-m %s and -hf %s both name the model: give one", o->path, o->hf);
    if (o->hf == NULL)
        return o->path != NULL ? models_find(o->path) : NULL;
    struct model_name name = models_parse("-hf", o->hf, o->hf_file);
    char *path = find_pulled(&name);
    return path != NULL ? path : models_pull(&name, false);
}

/* ---- pith models ---- */

static void format_used(time_t used, char *buf, size_t cap)
{
    double days = difftime(time(NULL), used) / 86400.0;
    if (days < 1.0)
        snprintf(buf, cap, "today");
    else
        snprintf(buf, cap, "%.0f day%s ago", days, days < 1.5 ? "" : "s");
}

static void print_entry(const struct model_entry *e)
{
    char size[32], used[32], name[300];
    snprintf(name, sizeof(name), "%s:%s", e->nick[0] != '\0' ? e->nick : e->repo, e->quant);
    format_used(e->used, used, sizeof(used));
    printf("%-40s %12s  %s%s%s%s\n", name, e->size >= 0 ? cli_bytes(e->size, size) : "incomplete",
           used, e->nick[0] != '\0' ? "  (" : "", e->nick[0] != '\0' ? e->repo : "",
           e->nick[0] != '\0' ? ")" : "");
}

static int list_models(void *options)
{
    (void)options;
    struct model_entries all = read_entries();
    char *folder = models_folder(), size[32];
    int64_t sum = 0;
    for (size_t i = 0; i < all.n; i++) {
        print_entry(&all.entry[i]);
        sum += all.entry[i].size > 0 ? all.entry[i].size : 0;
    }
    if (all.n == 0)
        printf("There is no model in %s; \"pith help pull\" says how to get one.\n", folder);
    else
        printf("%zu model%s, %s in %s\n", all.n, all.n == 1 ? "" : "s", cli_bytes(sum, size),
               folder);
    free(folder);
    free_entries(&all);
    return EXIT_SUCCESS;
}

/* Whether another model has the file, too. */
static bool is_wanted(const struct model_entries *all, const struct model_entry *but,
                      const char *file)
{
    for (size_t i = 0; i < all->n; i++) {
        const struct model_entry *e = &all->entry[i];
        const json_t *other;
        size_t j;
        if (e == but || strcmp(e->repo, but->repo) != 0)
            continue;
        json_array_foreach(
            json_object_get(e->json, "files"), j,
            other) if (strcmp(json_string_value(other) != NULL ? json_string_value(other) : "",
                              file) == 0) return true;
    }
    return false;
}

/* Removes what broken pulls of a file left, and the folders that are empty then. */
static void remove_file(const char *folder, const char *file)
{
    char *path = join(folder, "/", file), *slash = strrchr(path, '/');
    if (unlink(path) != 0 && errno != ENOENT)
        cli_fail("cannot remove \"%s\": %s", path, strerror(errno));
    for (; slash != NULL && (size_t)(slash - path) > strlen(folder); slash = strrchr(path, '/')) {
        *slash = '\0';
        if (rmdir(path) != 0)
            break;
    }
    free(path);
}

static void remove_parts(const char *folder)
{
    DIR *dir = opendir(folder);
    struct dirent *item;
    while (dir != NULL && (item = readdir(dir)) != NULL) {
        size_t len = strlen(item->d_name);
        if (len > 5 && strcmp(item->d_name + len - 5, ".part") == 0)
            unlinkat(dirfd(dir), item->d_name, 0);
    }
    if (dir != NULL)
        closedir(dir);
}

static int64_t remove_entry(const struct model_entries *all, const struct model_entry *e)
{
    char *folder = repo_folder(e->repo), *lock_path = join(folder, "/", ".lock");
    int lock = lock_folder(folder);
    const json_t *file;
    size_t i;
    if (unlink(e->path) != 0)
        cli_fail("cannot remove \"%s\": %s", e->path, strerror(errno));
    json_array_foreach(json_object_get(e->json, "files"), i, file)
    {
        const char *path = json_string_value(file);
        if (path != NULL && path[0] != '/' && strstr(path, "..") == NULL &&
            !is_wanted(all, e, path))
            remove_file(folder, path);
    }
    remove_parts(folder);
    bool alone = true;
    for (size_t j = 0; j < all->n; j++)
        alone = alone && (&all->entry[j] == e || strcmp(all->entry[j].repo, e->repo) != 0);
    if (alone) {
        unlink(lock_path);
        rmdir(folder);
    }
    close(lock);
    free(folder);
    free(lock_path);
    return e->size > 0 ? e->size : 0;
}

struct rm_options {
    struct option_texts names;
};

static const struct option rm_table[] = {
    {"NAME", NULL, NULL, OPTION_TEXTS, offsetof(struct rm_options, names),
     .help = "a model, as \"pith models list\" writes it"},
    {0},
};

static const struct option_group rm_groups[] = {{NULL, rm_table, 0}, {0}};

static int remove_models(void *options)
{
    const struct rm_options *o = options;
    char size[32];
    int status = EXIT_SUCCESS;
    if (o->names.n == 0)
        cli_fail_usage("NAME is missing: a model, as \"pith models list\" writes it");
    for (int32_t i = 0; i < o->names.n; i++) {
        struct model_entries all = read_entries();
        struct model_name name = models_parse("NAME", o->names.text[i], NULL);
        const struct model_entry *e = find_entry(&all, &name);
        for (size_t j = 0; j < all.n && e == NULL; j++) /* one that is incomplete */
            if (strcasecmp(all.entry[j].repo, name.repo) == 0 &&
                (name.quant[0] == '\0' || strcasecmp(all.entry[j].quant, name.quant) == 0))
                e = &all.entry[j];
        if (e == NULL) {
            cli_note("%s: there is no such model here; \"pith models\" lists them",
                     o->names.text[i]);
            status = EXIT_FAILURE;
        } else {
            cli_note("%s:%s is gone, %s", e->repo, e->quant,
                     cli_bytes(remove_entry(&all, e), size));
        }
        free_entries(&all);
    }
    return status;
}

static const struct option no_table[] = {{0}};
static const struct option_group no_groups[] = {{NULL, no_table, 0}, {0}};

static const struct command command_list = {
    .name = "list",
    .summary = "list the models that were pulled",
    .synopsis = "",
    .groups = no_groups,
    .options_size = 1,
    .run = list_models,
};

static const struct command command_rm = {
    .name = "rm",
    .summary = "remove a model that was pulled",
    .synopsis = "NAME...",
    .groups = rm_groups,
    .options_size = sizeof(struct rm_options),
    .run = remove_models,
};

static const struct command *const models_commands[] = {&command_list, &command_rm, NULL};

const struct command command_models = {
    .name = "models",
    .summary = "list the models that were pulled, or remove one",
    .notes =
        "They lie in pith/models below XDG_CACHE_HOME, else below ~/.cache. Commands take their\n"
        "names after -m.\n"
        "\n"
        "  pith models\n"
        "  pith models rm smollm2:Q4_K_M",
    .run = list_models,
    .subcommands = models_commands,
};
