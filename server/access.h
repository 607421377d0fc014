/*
 * access.h - which client may ask for what: API keys, and pages that are for this machine alone.
 */
#ifndef SERVER_ACCESS_H
#define SERVER_ACCESS_H

#include "exchange.h"

/* Sets the exchange's fault where its client may not have its route. */
void access_check(struct exchange *ex);

/* Whether the answer may be read by pages of other origins. */
bool access_shares(const struct exchange *ex);

#endif
