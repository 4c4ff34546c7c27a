# build.mk - what the Makefile's rules rest on: the stages, the device, compilers and flags, how a file is made and when again, what the
# tests are. Everything is built under build/<device>/, one folder a device (and a sanitizer or architecture list), so that switching
# rebuilds nothing. With OUT=/some/folder the tree stays as it is.

export LC_ALL := C# figures have a decimal point, whatever the user's language
$(if $(filter 3.% 4.0 4.0.% 4.1 4.1.%,$(MAKE_VERSION)),$(error this is make $(MAKE_VERSION), but GNU make 4.2 or later is needed))

DEVICE   ?= auto
NVCC     ?= $(firstword $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc))
ifneq ($(and $(NVCC),$(filter-out cpu,$(DEVICE))),)
  $(if $(shell command -v $(firstword $(NVCC)) 2>/dev/null),,$(error NVCC=$(NVCC): there is no such program))
endif
# 90 for compute capability 9.0. Without a driver nvidia-smi writes its excuse to stdout: nothing but a number counts.
GPU_CC   := $(if $(NVCC),$(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null \
              | grep -E '^[0-9]+\.[0-9]+$$' | head -n 1 | tr -d .))

# All cores compile, unless -j or the environment's MAKEFLAGS=-j1 says otherwise; not if there are several goals, as their order
# may matter (make clean all).
JOBS     ?= $(shell getconf _NPROCESSORS_ONLN)
HAS_JOBS := $(filter -j% --jobs%,$(shell echo "$$MAKEFLAGS"))
MAKEFLAGS += --no-print-directory $(if $(HAS_JOBS),,$(if $(filter 00 01,$(MAKELEVEL)$(words $(MAKECMDGOALS))),--jobs=$(JOBS)))

# ---- the stages ---------------------------------------------------------------------------------------------------------
# A line of common/ladder.txt is one word here: name|builds on|links. What a stage computes is said in its main.c.
, := ,
LADDER := $(shell sed '/^[^0-9a-z]/d; s/  *$$//; s/  */|/g' common/ladder.txt)
STAGES := $(foreach line,$(LADDER),$(firstword $(subst |, ,$(line))))
column  = $(word $2,$(subst |, ,$(filter $1|%,$(LADDER))))
links   = $(filter-out -,$(subst $(,), ,$(call column,$1,3)))
table   = $(subst $() ,,$(strip $(file <$1/main.c)))# its main.c without white space: .name="04_fa2",.idea=...
of_kind = $(foreach s,$(STAGES),$(if $(findstring .kind=$1,$(call table,$s)),$s))
BACKWARD := $(call of_kind,BACKWARD)
DECODING := $(call of_kind,DECODING)
NAIVE  := $(firstword $(STAGES))# every program has it, to be validated against

$(foreach s,$(STAGES),$(if $(findstring .name="$s",$(call table,$s)),,$(error $s/main.c has no .name = "$s": a stage must have the name of its folder)))
UNLISTED := $(filter-out $(STAGES),$(filter $(MAKECMDGOALS:%/=%),$(patsubst %/.,%,$(wildcard [0-9]*/.))))
$(if $(UNLISTED),$(error $(UNLISTED): common/ladder.txt has no line for it))

# ---- which device, and why ----------------------------------------------------------------------------------------------
REASON := as requested
ifeq ($(DEVICE),auto)
  REASON := $(if $(NVCC),$(if $(GPU_CC),nvcc and a GPU are here,nvcc is here but nvidia-smi shows no GPU),nvcc is not installed)
  DEVICE := $(if $(GPU_CC),cuda,cpu)
endif
on_gpu := $(filter cuda,$(DEVICE))
$(if $(filter cpu cuda,$(DEVICE)),,$(error DEVICE=$(DEVICE): choose auto, cuda or cpu))
$(if $(on_gpu),$(if $(NVCC),,$(error DEVICE=cuda needs nvcc from the CUDA Toolkit; set NVCC=/path/to/nvcc if it is not on the PATH)))
$(if $(on_gpu),$(if $(TRACE),$(error TRACE=1 is for the CPU device: add DEVICE=cpu)))

# ---- compilers ----------------------------------------------------------------------------------------------------------
# gcc and g++, or clang where they are not. CFLAGS and CXXFLAGS are yours: they come after the flags here, for the host's C and
# for the kernels on the CPU device.
first_of = $(or $(firstword $(foreach c,$1,$(if $(shell command -v $c 2>/dev/null),$c))),$(firstword $1))
CC    := $(if $(filter default,$(origin CC)),$(call first_of,gcc clang),$(CC))
CXX   := $(if $(filter default,$(origin CXX)),$(call first_of,g++ clang++),$(CXX))

# ARCH: the chips to compile for. 86, 8.6 or sm_86: machine code; compute_86: PTX, which the driver compiles when the program
# starts; native: this GPU. One that is newer than nvcc gets the newest PTX that nvcc can write.
ifneq ($(and $(on_gpu),$(GPU_CC)),)
  KNOWN  := $(shell $(NVCC) --list-gpu-arch 2>/dev/null | sed 's/compute_//' | awk '/^[0-9]+$$/ && $$1 <= $(GPU_CC)' | sort -n | tail -n 1)
  NATIVE := $(if $(filter-out $(GPU_CC),$(KNOWN)),compute_$(KNOWN),$(patsubst 90,90a,$(GPU_CC)))
endif
ARCH   ?= $(or $(NATIVE),75 80 89 90a)
CHIPS  := $(patsubst sm_%,%,$(subst .,,$(patsubst native,$(NATIVE),$(ARCH))))
ifneq ($(on_gpu),)
  ifeq ($(shell echo '$(CHIPS)' | grep -Ex '((compute_)?[0-9]+[af]? *)+'),)
    $(error ARCH=$(ARCH): choose compute capabilities, like 86 or "80 90a", or native where there is a GPU)
  endif
  ifneq ($(filter compute_$(KNOWN),$(NATIVE)),)
    REASON += (nvcc does not know sm_$(GPU_CC): the driver will compile PTX for it)
  endif
endif
gencode = $(foreach a,$(CHIPS),-gencode arch=$(if $(filter compute_%,$a),$a$(,)code=$a,compute_$a$(,)code=sm_$a))

WARN   ?= -Wall -Wextra
KERNEL_OPTIMISE ?= -O3
HOST_CC = $(CC) -std=c11 -O2 -g $(WARN) -pthread
GNU_CXX = $(firstword $(foreach c,$(CXX) g++,$(if $(findstring Free Software,$(shell $c --version 2>/dev/null)),$c)))

ifeq ($(DEVICE),cuda)
  OUT       := build/cuda-$(subst $() ,-,$(strip $(CHIPS)))
  KERNEL_CC := $(NVCC) $(if $(GNU_CXX),,-ccbin $(CXX)) -std=c++17 -O3 -lineinfo $(gencode) -Xcompiler -Wall
  LINK      := $(NVCC) $(if $(GNU_CXX),,-ccbin $(CXX)) $(gencode) -Xcompiler -pthread
else ifndef TRACE
  # no contraction to fused multiply-adds: results must not depend on the compiler's mood
  OUT       := build/cpu$(addprefix -,$(subst $(,),-,$(SANITIZE)))
  SAN       := $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-sanitize-recover=all -fno-omit-frame-pointer)
  HOST_CC   += $(SAN)
  KERNEL_CC := $(CXX) -x c++ -std=c++17 -g $(KERNEL_OPTIMISE) -ffp-contract=off $(WARN) -Wno-unknown-pragmas -pthread $(SAN) $(CXXFLAGS)
  LINK      := $(CXX) -pthread $(SAN)
else
  # TRACE=1: the kernels report each access to memory (common/trace/trace.c, notes/trace.md). -fsanitize=thread inserts the
  # calls, the options after it keep them true to the source; clang would split or lose the 16-byte ones.
  override CXX := $(or $(GNU_CXX),$(error the trace needs g++, which is not installed; clang cannot replace it))
  OUT       := build/cpu-trace
  HOST_CC   += -DTRACE
  KERNEL_CC := $(CXX) -x c++ -std=c++17 -O1 -g1 -ffp-contract=off $(WARN) -Wno-unknown-pragmas -Wno-tsan -pthread -DTRACE \
               -fsanitize=thread --param tsan-instrument-func-entry-exit=0 --param tsan-distinguish-volatile=1 -fno-tree-sra \
               -fsanitize-coverage=trace-pc $(CXXFLAGS)
  LINK      := $(CXX) -pthread -no-pie -Wl,--wrap=expf,--wrap=exp2f,--wrap=tanhf
  # what the program's instructions compute, for trace_flops.c
  READ_CODE  = objdump --disassemble --line-numbers --no-show-raw-insn $@.$$$$ 2>/dev/null | \
               grep -A1 -E '^[0/]|sanitizer_cov|[bdlv]ss |	f[adsmn]' >$@.code.$$$$ && mv $@.code.$$$$ $@.code &&
endif
ifneq ($(words $(OUT))$(findstring ',$(OUT))$(findstring :,$(OUT)),1)
  $(error OUT=$(OUT): choose one folder, without spaces, quotes or colons in its name)
endif

# ---- how a file is made -------------------------------------------------------------------------------------------------
folder  = mkdir -p $(@D) 2>/dev/null && [ -w $(@D) ] || \
           { echo "$(@D) cannot be written to: OUT=/some/folder builds elsewhere" >&2; exit 2; }
quiet   = $(if $(V),,@)$(folder) && echo "  $(count) $1" && # make V=1 prints the commands, too
still   = $(if $(V),,sh common/still.sh 'compiling $<' )# a compiler that takes long is not silent
whole   = -o $@.$$$$ && mv $@.$$$$ $@# it gets its name when it is done: another make may be at work in this tree
compile = $(call quiet,compile $<)$(still)$1 -MMD -MP -MT $@ -MF $(@:.o=.d) -c $< $(whole)
objects = $(patsubst %,$(OUT)/%.o,$1)
.DELETE_ON_ERROR:

# [7/31]: the seventh of the 31 files that are not up to date. Make expands a recipe when it is about to run it, so this counts
# those that have begun. Before the first of them a dry run counts all.
count   = $(eval BEGUN += x)[$(words $(BEGUN))/$(TOTAL)]
TOTAL   = $(eval TOTAL := $(shell $(DRY_RUN) | grep -c '&& echo "  \['))$(TOTAL)
DRY_RUN = env -u MAKEFLAGS -u MAKELEVEL $(MAKE) -n$(filter-out -%,$(firstword $(MAKEFLAGS))) $(MAKEOVERRIDES) TOTAL=. $(MAKECMDGOALS) 2>/dev/null

# What decides about an object beside its source is the name of an empty file, newer than the object where it has changed:
# compilers and flags for all, and for the file that prints it the commit. A commit is this folder's, not one around it.
COMMIT    ?= $(or $(shell git --git-dir=.git describe --always --dirty 2>/dev/null),unknown)
IS_COMMIT := $(OUT)/commit-$(COMMIT)
IS_FLAGS  := $(OUT)/flags-$(firstword $(shell echo '$(HOST_CC) $(CFLAGS) $(KERNEL_CC) $(LINK)' | cksum))
$(IS_COMMIT): | $(IS_FLAGS)# one after the other: what cannot be written is said once
$(IS_COMMIT) $(IS_FLAGS):
	@$(folder)
	@rm -f $(OUT)/$(firstword $(subst -, ,$(@F)))-* && touch $@
$(OUT)/common/harness/records.c.o: HOST_CC += -DFA_COMMIT='"$(COMMIT)"'
$(OUT)/common/harness/records.c.o: $(IS_COMMIT)

$(OUT)/%.c.o: %.c $(IS_FLAGS)
	$(call compile,$(HOST_CC) $(CFLAGS))

$(OUT)/%.cu.o: %.cu $(IS_FLAGS)
	$(call compile,$(KERNEL_CC))

# What tests do with kernels of their own is little, and compiling takes half as long.
$(OUT)/tests/%.cu.o: KERNEL_CC += $(if $(on_gpu)$(TRACE),,$(patsubst -O3,-O1,$(KERNEL_OPTIMISE)) $(CXXFLAGS))

# A stage's main.c without its main(): its table, for tests that bring a main() of their own.
$(OUT)/%/table.o: %/main.c $(IS_FLAGS)
	$(call compile,$(HOST_CC) $(CFLAGS) -Dmain=stage_main)

# A library a room, each before those that it calls, and one of 00_naive. *_cpu.c and *_cuda.cu are for that device alone.
ROOMS     := common/harness common/judge $(NAIVE) common/device $(if $(on_gpu),,common/cpu) $(if $(TRACE),common/trace) common/host
LIBRARIES := $(ROOMS:%=$(OUT)/%.a)
sources    = $(filter-out $(if $(on_gpu),%_cpu.c,%_cuda.cu),$(wildcard $1/*.c $1/*.cu))
kernels    = $(call objects,$(filter-out $(STAGES:%=%/main.c),$(call sources,$1)) $(call links,$1))
$(foreach room,$(ROOMS),$(eval $(OUT)/$(room).a: $(call kernels,$(room))))
$(OUT)/%.a:
	@$(AR) rcs $@.$$$$ $^ && mv $@.$$$$ $@

PROGRAMS := $(foreach s,$(STAGES),$(OUT)/$s/$s)
rows      = sh common/classroom/rows.sh $(OUT)/$1/$1# as JSON, and how the program ended
PRIMER   := $(patsubst %.cu,$(OUT)/%,$(wildcard notes/hopper/*.cu))
TESTS    := $(addprefix $(OUT)/,$(basename $(wildcard tests/*.c tests/*.cu)) $(STAGES:%=tests/grid_%) $(STAGES:%=tests/figures_%) $(BACKWARD:%=tests/short_%))
LINK_PROGRAM = $(call quiet,link    $@)$(LINK) $(WRAPPED:%=-Xlinker --wrap=%) $^ -lm -o $@.$$$$ && $(READ_CODE) mv $@.$$$$ $@
$(PROGRAMS) $(TESTS) $(PRIMER) $(OUT)/common/results/ceilings $(OUT)/notes/exercises/transpose $(OUT)/lab:
	$(LINK_PROGRAM)

# What make watch shows: the stage, and before it the one it builds on if both are forward and no --variant is named, nor an option of the
# stage's own, which is one that its table has.
before  = $(firstword $(subst /, ,$(call column,$1,2)))
given   = $(foreach o,$(filter --%,$(TRACE_OPTIONS)),$(patsubst --%,%,$(firstword $(subst =, ,$o))))
alone   = $(foreach o,$(given),$(filter variant,$o)$(findstring {.name="$o",$(call table,$1)))
watched = $(if $(strip $(call alone,$1)$(filter $1,$(BACKWARD) $(DECODING))),,$(filter $(STAGES),$(call before,$1))) $1

# ---- a stage's rules ----------------------------------------------------------------------------------------------------
number = $(firstword $(subst _, ,$1))
.PHONY: $(STAGES) $(STAGES:%=%/) $(foreach s,$(STAGES),$s/$s $(call number,$s)) $(STAGES:%=trace-%) $(STAGES:%=watch-%) $(STAGES:%=profile-%)
define stage_rules
$1/ $1/$1 $(call number,$1): $1
$1: $(OUT)/$1/$1
$(foreach t,trace watch profile,$(eval $t-$(call number,$1): $t-$1))
$(if $(TRACE),trace-$1: $(OUT)/$1/$1)
$(if $(TRACE),watch-$1: $(foreach s,$(call watched,$1),$(OUT)/$s/$s))
$(OUT)/$1/$1: $(OUT)/$1/main.c.o $(call kernels,$1) $(LIBRARIES)
$(OUT)/tests/$1: $(OUT)/$1/table.o $(call kernels,$1)
$(OUT)/tests/figures_$1: $(OUT)/$1/table.o $(call kernels,$1) $(OUT)/tests/figures.c.o $(LIBRARIES)
$(OUT)/tests/grid_$1: $(OUT)/$1/table.o $(call kernels,$1) $(call grid,$1) $(LIBRARIES)
$(OUT)/tests/short_$1: $(OUT)/$1/table.o $(call kernels,$1) $(OUT)/tests/short.c.o $(LIBRARIES)
endef
grid = $(call objects,tests/grid.c tests/grid_case.c tests/grid_$(if $(filter $1,$(BACKWARD)),backward,forward).c)
$(foreach s,$(STAGES),$(eval $(call stage_rules,$s)))

# ---- the tests ----------------------------------------------------------------------------------------------------------
# tests/*.c and tests/*.cu are programs that speak TAP, tests/*.t are Perl. grid*.c and figures.c are linked once a stage, and
# <stage>.c with that stage, against its table of variants, short.c with each backward stage. simt* examine the CPU device;
# simt_errors is run by its .t.
GRIDS   := $(STAGES:%=$(OUT)/tests/grid_%)
SHORT   := $(BACKWARD:%=$(OUT)/tests/short_%)
NOT_NOW := tests/grid% tests/figures% tests/short% tests/mutations% tests/trace% tests/watch% tests/moving% tests/site% tests/notebook% $(if $(on_gpu),tests/simt%)
UNITS   := $(patsubst %,$(OUT)/%,$(basename $(filter-out $(NOT_NOW),$(wildcard tests/*.c tests/*.cu)))) $(STAGES:%=$(OUT)/tests/figures_%) $(SHORT)
SCRIPTS := $(filter-out $(NOT_NOW),$(wildcard tests/*.t))
# A test that calls make starts afresh, with the same device, compilers and flags. A GPU takes two tests at a time.
AT_ONCE  = $(if $(on_gpu),2,$(or $(patsubst -j%,%,$(filter -j%,$(MAKEFLAGS))),$(JOBS)))
PROVE    = @env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL TEST_BUILD=$(OUT) TEST_DEVICE=$(DEVICE) \
           $(foreach v,DEVICE CC CXX CFLAGS CXXFLAGS NVCC ARCH WARN KERNEL_OPTIMISE COMMIT,$v='$($v)') \
           perl tests/prove.pl $(if $(filter dumb,$(or $(TERM),dumb)),--nocolor) --exec '' --jobs $(AT_ONCE)
PROVING := $(filter test test-% mutations% trace-defects,$(MAKECMDGOALS))
$(if $(PROVING),$(if $(shell command -v prove 2>/dev/null),,$(error make $(PROVING) needs prove, which comes with perl (in Fedora: perl-Test-Harness))))

$(foreach t,$(wildcard tests/*.c tests/*.cu),$(eval $(OUT)/$(basename $t): $(call objects,$t) $(LIBRARIES)))
$(OUT)/tests/oracle: $(call objects,11_score_mod/score.c 11_score_mod/definition.c)# score mods are among its problems
# What of the device tests/figures.c has of its own: the clock, above all. It counts what the oracle is asked, and notes what a
# terminal would be told.
$(OUT)/tests/figures_%: WRAPPED := device_time_ms device_time_replay_ms device_replay_end device_bandwidth device_alloc \
                                   samples_compute gradients_compute show_progress end_progress

# ---- other programs -----------------------------------------------------------------------------------------------------
$(PRIMER): %: %.cu.o $(LIBRARIES)
CEILINGS := $(OUT)/common/results/ceilings
$(CEILINGS): $(call objects,common/results/ceilings.cu) $(LIBRARIES)
$(OUT)/notes/exercises/transpose: $(call objects,notes/exercises/transpose_main.c notes/exercises/transpose.cu) $(LIBRARIES)

# A lab is three programs: the student's, for the CPU device and under the trace, and the judge of both. LABS: where the student's files
# are, labs/04/kernel.cu; LAB_OUT: what is made of them. -Wno-error: an unused parameter is no mistake. -gdwarf-4: of DWARF 5
# objdump 2.40 confuses a header's lines with those of the file that includes it by an option.
LABS    ?= $(if $(filter /%,$(OUT)),$(OUT)/)labs
LAB_OUT ?= $(OUT)/labs
$(OUT)/lab: $(call objects,common/labs/judge.c 05_fa2_backward/naive_backward.cu 05_fa2_backward/naive_traffic.c 10_block_sparse/blocks.c 10_block_sparse/definition.c 11_score_mod/score.c 11_score_mod/definition.c) $(LIBRARIES)
ifneq ($(on_gpu),)
# On a GPU it is only timed, after the CPU device has found it right; a kernel and who launches it are then one file to nvcc.
$(LAB_OUT)/%/kernel.o: $(LABS)/%/kernel.cu common/labs/%/host.cu common/labs/%/kernel.h $(IS_FLAGS)
	$(call quiet,compile $<)$(KERNEL_CC) -include $(CURDIR)/common/labs/$*/kernel.h -include $< -c common/labs/$*/host.cu $(whole)
$(LAB_OUT)/%/run: $(LAB_OUT)/%/kernel.o $(OUT)/common/labs/run.c.o $(LIBRARIES)
	$(LINK_PROGRAM)
else
$(LAB_OUT)/%/kernel.o: $(LABS)/%/kernel.cu $(IS_FLAGS) common/labs/%/lab.txt $(wildcard common/labs/*.awk) common/labs/compile.sh
	$(call quiet,compile $<)sh common/labs/compile.sh "$(KERNEL_CC) -Wno-error -gdwarf-4 -include $(CURDIR)/common/labs/$*/kernel.h" $< $@
$(LAB_OUT)/%/run: $(LAB_OUT)/%/kernel.o $(OUT)/common/labs/%/host.cu.o $(OUT)/common/labs/run.c.o $(LIBRARIES)
	$(LINK_PROGRAM)
endif
.SECONDARY: $(call objects,common/labs/run.c $(wildcard common/labs/*/host.cu))
.PRECIOUS: $(LAB_OUT)/%/kernel.o

# The problem of a trace: decoding has few queries, and so a shape of its own. Both have four of the largest key tiles, and several
# blocks.
traced = $(if $(filter $1,$(DECODING)),$(or $2,--heads 8 --kv-heads 2 --seqlen-k 1024),$(or $(TRACE_OPTIONS),--heads 2 --seqlen 256 --seqlen-k 1024))

# Pages and pictures: here, or where OUT=/some/folder says.
PAGES   := $(if $(filter /%,$(OUT)),$(OUT),build)
PICTURE := $(PAGES)/compare/compare.svg
in_sh    = MAKE='$(MAKE_COMMAND)' OUT='$(OUT)' TRACE_OUT='$(or $(filter /%,$(OUT:%=%-trace)),build/cpu-trace)' DEVICE=$(DEVICE) sh
needs_gpu = @echo "make $@ needs a GPU: DEVICE=cuda" >&2; exit 2

-include $(shell [ -d $(OUT) ] && find $(OUT) -name '*.d')
