#include <stdio.h>
int main(void) { puts("pith"); return 0; }
