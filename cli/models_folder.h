/*
 * models_folder.h - the folder of pulled models (models.h), for `pith pull` and `pith models`.
 *
 * Invariant: a model's file of JSON is written when all of its files are there and right, and goes
 * before them. A process that writes in a repository's folder holds its lock.
 */
#ifndef CLI_MODELS_FOLDER_H
#define CLI_MODELS_FOLDER_H

#include <time.h>

#include "models.h"

#define MODELS_USUAL_QUANT "Q4_K_M"

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

/* Reads "NICK[:QUANT]" or "USER/REPO[:QUANT]"; false: it is neither. */
bool models_read_name(const char *text, struct model_name *out);

/* Texts one behind the other; the caller frees. */
char *models_join(const char *a, const char *between, const char *b);

/* The folder of all models, and that of a repository "USER/REPO"; the caller frees. */
char *models_folder(void);
char *models_repo_folder(const char *repo);

/* Makes the folders that a path names, up to its last slash. */
void models_make_folders(const char *path);

/* Waits for other processes that write into the folder. Returns a descriptor whose closing ends the
   lock. */
int models_lock(const char *folder);

/* The text under a key, "" without. */
const char *models_text(const json_t *json, const char *key);

/* All models, complete or not; the caller frees. */
struct model_entries models_read(void);
void models_free(struct model_entries *all);

/* The complete model that a name asks for; NULL: it is not there. */
const struct model_entry *models_find_entry(const struct model_entries *all,
                                            const struct model_name *name);

/* The path of that model, which then counts as used now; the caller frees. */
char *models_find_pulled(const struct model_name *name);

#endif
