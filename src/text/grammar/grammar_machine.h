/*
 * grammar_machine.h - runs a program: sets of threads, made when a text first gets there and kept.
 *
 * A thread is a node and a frame. A frame holds the ways to go on where its rule ends: each is a
 * node to return to and the frame that counts there. All calls of a rule at one place of the text
 * share a frame. (The frames are a graph-structured stack: Tomita, "An efficient
 * augmented-context-free parsing algorithm", 1987.) So ambiguous grammars take a polynomial of the
 * text's length, not an exponential. Frames stand on a floor that a set does not know: what is
 * below is the text's own stack. So a set, its steps by bytes and its mask of tokens depend on
 * nothing below the floor. The same set serves wherever its part of the grammar was called from.
 *
 * A set "leaves" when one of its threads has returned through the floor. grammar_join then puts the
 * top of the text's stack into the set. grammar_settle does the opposite. Where all threads end
 * with the same ways, these move to the text's stack as one frame, so that sets stay small and few.
 *
 * Nothing here is thread-safe; the grammar holds a lock.
 */
#ifndef PI_GRAMMAR_MACHINE_H
#define PI_GRAMMAR_MACHINE_H

#include "text/grammar/grammar_program.h"
#include "text/vocab/vocab_tree.h"

enum { GRAMMAR_SET_UNKNOWN = 0, GRAMMAR_SET_DEAD = 1 };

struct grammar_thread {
    uint32_t node, frame;
};

struct grammar_way {
    uint32_t ret, parent; /* the node, and the frame there, which is an older one */
};

/* Frame 0 is the floor alone. */
struct grammar_frame {
    uint32_t first, n; /* of the ways, in ascending order, without equals */
    bool floor;        /* and it may stand on the floor */
};

/* A call whose rule has not been begun yet. */
struct grammar_call {
    uint32_t rule;
    struct grammar_way way; /* ret END: whatever frame parent has */
};

struct grammar_set {
    struct grammar_thread *thread; /* [n], in ascending order; owned */
    uint32_t n;
    bool leaves;
    bool is_settled;  /* what follows is known */
    uint32_t move;    /* the frame that settling moves to the stack; 0: none */
    uint32_t settled; /* the set that is left then */
    uint32_t plain;   /* the set behind any plain character; UNKNOWN, or DEAD: not one set */
    uint32_t entry;   /* its tokens: index + 1; 0: not known yet */
    uint32_t hash;
};

/* A frame below a set, and what becomes of it under another floor. */
struct grammar_reach {
    uint32_t frame, moved;
};

/* An open-addressed table of numbers. */
struct grammar_table {
    uint64_t *key;   /* [mask + 1] 0: empty; owned */
    uint32_t *value; /* owned */
    uint32_t mask, n;
};

/* Where a token may go on below the floor. */
struct grammar_exit {
    uint32_t node; /* of the vocabulary's tree: below it */
    uint32_t set;
};

/* Tokens that may follow a set, or the exits of another entry. */
struct grammar_entry {
    uint64_t *bits; /* [n_word], owned; NULL: few */
    int32_t *few;   /* [n_few], owned */
    int32_t n_few;
    struct grammar_exit *exit; /* [n_exit], owned */
    uint32_t n_exit;
};

struct grammar_machine {
    const struct grammar_program *p;
    const struct vocab_tree *tree;
    pith_status status; /* the first failure; sets are then no longer reliable */
    uint32_t work;      /* threads followed since a mask or an advance began */
    size_t bytes;       /* of sets, frames and tables */
    size_t mask_bytes;  /* of entries */

    struct grammar_frame *frame; /* [n_frame], owned */
    uint32_t n_frame, cap_frame;
    struct grammar_way *way; /* [n_way], owned */
    uint32_t n_way, cap_way;
    struct grammar_set *set; /* [n_set], owned */
    uint32_t n_set, cap_set;
    uint32_t *next;              /* [cap_set][n_class] sets, owned */
    struct grammar_entry *entry; /* [n_entry], owned */
    uint32_t n_entry, cap_entry;
    struct grammar_table frames, sets, joins, entries;

    struct grammar_thread *found; /* [cap_found] threads of the set that is being made, owned */
    uint32_t n_found, cap_found;
    struct grammar_thread *todo; /* [cap_todo], owned */
    uint32_t n_todo, cap_todo;
    struct grammar_table seen; /* of this closure */
    bool found_leaves;
    struct grammar_call *call; /* [n_call], owned */
    uint32_t n_call, cap_call;
    struct grammar_way *build; /* [n_build] of the frame that is being made, owned */
    uint32_t n_build, cap_build;
    bool build_floor;

    struct grammar_reach *reach; /* [n_reach] frames below a set, parents first; owned */
    uint32_t n_reach, cap_reach;
    struct grammar_table reached; /* frame + 1 to its place + 1 */

    uint32_t *path;            /* [2][max_depth + 1] sets along a token, and ends of nodes; owned */
    uint64_t *scratch;         /* [n_word] owned */
    struct grammar_exit *exit; /* [cap_exit], owned */
    uint32_t n_exit, cap_exit;
};

/* NOMEM. The caller frees, also after a failure. */
pith_status grammar_machine_init(struct grammar_machine *m, const struct grammar_program *p,
                                 const struct vocab_tree *tree);
void grammar_machine_free(struct grammar_machine *m);

/* The set of a text's beginning. DEAD after a failure, as all of these. */
uint32_t grammar_begin(struct grammar_machine *m);
/* The set behind a byte. */
uint32_t grammar_step_slow(struct grammar_machine *m, uint32_t set, uint32_t class_of);
static inline uint32_t grammar_step(struct grammar_machine *m, uint32_t set, uint8_t byte)
{
    uint32_t class_of = m->p->class_of[byte];
    uint32_t next = m->next[(size_t)set * m->p->n_class + class_of];
    return next != GRAMMAR_SET_UNKNOWN ? next : grammar_step_slow(m, set, class_of);
}
/* A set that leaves, with what it finds where it returns to: by the ways of a frame of the
   stack. */
uint32_t grammar_join(struct grammar_machine *m, uint32_t set, uint32_t top);
/* Frames that move to the stack, bottom first, into out [*n]; returns the set that is left. */
uint32_t grammar_settle(struct grammar_machine *m, uint32_t set, uint32_t *out, uint32_t cap,
                        uint32_t *n);
/* Most frames of one settling. */
#define GRAMMAR_MOVE_MAX 64

/* ---- tokens (grammar_mask.c) ---- */

/* Sets the bits of tokens that may follow a set, on a stack [n_stack] of frames. */
pith_status grammar_tokens(struct grammar_machine *m, uint32_t set, const uint32_t *stack,
                           uint32_t n_stack, uint64_t *bits);
void grammar_entries_free(struct grammar_machine *m);

/* ---- tables ---- */

/* The place of a key, which is not 0; NULL: no memory. *value is 0 where it was not there. */
uint32_t *grammar_table_at(struct grammar_table *t, uint64_t key);
void grammar_table_free(struct grammar_table *t);
void grammar_table_clear(struct grammar_table *t);

#endif
