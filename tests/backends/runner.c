/* A stand-in for the agent: becomes the program that its arguments name, with its own standard streams.
 *
 * The tests run commands of an image through it, so that a backend is tested without the agent and its protocol. No libc: it
 * compiles in a moment.
 */

#if defined(__x86_64__)
__asm__(".globl _start\n"
        "_start:\n"
        "    mov 16(%rsp), %rdi\n"         /* argv[1] */
        "    lea 16(%rsp), %rsi\n"         /* &argv[1] */
        "    mov (%rsp), %rax\n"           /* argc */
        "    lea 16(%rsp,%rax,8), %rdx\n"  /* envp */
        "    mov $59, %eax\n"              /* execve */
        "    syscall\n"
        "    mov $127, %edi\n"
        "    mov $60, %eax\n" /* exit */
        "    syscall\n");
#elif defined(__aarch64__)
__asm__(".globl _start\n"
        "_start:\n"
        "    ldr x0, [sp, #16]\n"
        "    add x1, sp, #16\n"
        "    ldr x2, [sp]\n"
        "    add x2, x1, x2, lsl #3\n"
        "    mov x8, #221\n"
        "    svc #0\n"
        "    mov x0, #127\n"
        "    mov x8, #93\n"
        "    svc #0\n");
#endif
