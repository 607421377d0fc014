/*
 * pull.c - `pith pull`: chooses a model's files in a repository of a hub and fetches them into the
 * folder of models. Options of other commands that name a model are resolved here, too.
 */
#define _DEFAULT_SOURCE
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <eval.h>

#include "command.h"
#include "hub.h"
#include "models_folder.h"

#define SUFFIX ".gguf"

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
    size_t len = strlen(path), tail = strlen(SUFFIX);
    if (end == NULL && (len <= tail || strcasecmp(path + len - tail, SUFFIX) != 0)) {
        snprintf(buf, 64, "%s", name); /* no model */
        return buf;
    }
    if (end == NULL)
        end = path + len - tail;
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
    const struct hub_file *file =
        find_quant(list, name->quant[0] ? name->quant : MODELS_USUAL_QUANT);
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

/* Without a size nothing can be fetched; a sum that is none would leave the file unchecked. */
static void check_file(const char *repo, const struct hub_file *file)
{
    if (file->size < 0)
        cli_fail("%s: the hub's list has no size of \"%s\" that can be", repo, file->path);
    if (file->bad_sum)
        cli_fail("%s: the sum that the hub's list has of \"%s\" is no SHA-256", repo, file->path);
}

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
    for (int i = 0; i < *n; i++)
        check_file(name->repo, parts[i]);
    return parts;
}

/* Whether a file is there that was pulled with this sum. */
static bool is_pulled(const json_t *before, const char *path, const struct hub_file *file)
{
    struct stat st;
    const char *sum = models_text(json_object_get(before, "sums"), file->path);
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
    char *folder = models_repo_folder(name->repo);
    char *what = models_join(name->file != NULL ? first : quant, "", "");
    for (char *at = what; *at != '\0'; at++)
        *at = *at == '/' ? '-' : *at;
    char *left = models_join(folder, "--", what), *out = models_join(left, "", ".json");
    free(folder);
    free(what);
    free(left);
    return out;
}

static void write_entry(const char *path, json_t *json)
{
    pith_error err;
    struct eval_text text = {0};
    eval_text_add_json(&text, json, JSON_INDENT(1));
    if (text.failed)
        cli_fail("no memory for a model's entry");
    cli_check(eval_write_file(path, &text, &err), &err);
    eval_text_free(&text);
}

/* Fetches what is not there; returns the path of the first. */
static char *fetch(const struct model_name *name, const struct hub_file **parts, int n, bool quiet)
{
    char quant[64], size[32], *folder = models_repo_folder(name->repo), *first = NULL;
    int lock = models_lock(folder);
    char *json_path = entry_path(name, quant_of(parts[0]->path, quant), parts[0]->path);
    json_t *before = json_load_file(json_path, 0, NULL);
    json_t *files = json_array(), *sums = json_object();
    int64_t missing = 0, all = 0;
    bool fetched = false;
    for (int i = 0; i < n; i++) {
        char *path = models_join(folder, "/", parts[i]->path);
        if (!is_pulled(before, path, parts[i]))
            missing += parts[i]->size - hub_part_bytes(parts[i], path);
        all += parts[i]->size;
        free(path);
    }
    check_room(folder, missing);
    for (int i = 0; i < n; i++) {
        char *path = models_join(folder, "/", parts[i]->path);
        models_make_folders(path);
        if (!is_pulled(before, path, parts[i])) {
            hub_fetch(name->repo, parts[i], path);
            fetched = true;
        }
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
                 fetched ? "is here" : "was here already");
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
    if (access(text, F_OK) == 0 || !models_read_name(text, &name))
        return models_join(text, "", "");
    path = models_find_pulled(&name);
    if (path == NULL && strchr(text, '/') == NULL)
        cli_fail("%s: it is not here yet; \"pith pull %s\" fetches it", text, text);
    return path != NULL ? path : models_join(text, "", "");
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
    char *path = models_find_pulled(&name);
    return path != NULL ? path : models_pull(&name, false);
}

/* ---- pith pull ---- */

struct pull_options {
    const char *name;
    const char *file;
    bool list;
    bool quiet;
};

#define AT(member) .offset = offsetof(struct pull_options, member)
static const struct option pull_table[] = {
    {"NAME", NULL, NULL, OPTION_TEXT, AT(name),
     .help = "USER/REPO[:QUANT], or a short name of the list"},
    {"--hf-file", "-hff", "FILE", OPTION_TEXT, AT(file), .absent = "by QUANT",
     .help = "the file of the repository"},
    {"--list", NULL, NULL, OPTION_FLAG, AT(list), .help = "list the short names"},
    {"--quiet", "-q", NULL, OPTION_FLAG, AT(quiet), .help = "say nothing at the end"},
    {0},
};
#undef AT

static const struct option_group groups[] = {{NULL, pull_table, 0}, {0}};

static int list_nicks(void)
{
    const char *nick, *repo;
    for (size_t i = 0; (nick = models_nick(i, &repo)) != NULL; i++)
        printf("%-20s %s\n", nick, repo);
    return EXIT_SUCCESS;
}

static int run(void *options)
{
    const struct pull_options *o = options;
    if (o->list)
        return list_nicks();
    if (o->name == NULL)
        cli_fail_usage("NAME is missing: USER/REPO[:QUANT], or a short name that --list lists");
    struct model_name name = models_parse("NAME", o->name, o->file);
    char *path = models_pull(&name, o->quiet);
    printf("%s\n", path);
    free(path);
    return EXIT_SUCCESS;
}

const struct command command_pull = {
    .name = "pull",
    .summary = "fetch a model from a hub",
    .synopsis = "NAME[:QUANT]",
    .notes =
        "QUANT is Q4_K_M where it is not given, and the first file where there is none of it. Of "
        "a\n"
        "model in several files all are fetched. A broken transfer goes on where it ended. The sum "
        "of\n"
        "each file is checked. Standard output is the path of the (first) file.\n"
        "\n"
        "HF_TOKEN is the token, HF_ENDPOINT a mirror; with HF_HUB_OFFLINE=1 nothing is fetched.\n"
        "Models lie in pith/models below XDG_CACHE_HOME, else below ~/.cache.\n"
        "\n"
        "  pith pull smollm2\n"
        "  pith pull Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF:Q8_0\n"
        "  pith run -hf Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF:Q8_0 --chat -p Hello",
    .groups = groups,
    .options_size = sizeof(struct pull_options),
    .run = run,
};
