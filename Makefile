# FlashAttention, stage by stage. `make help` lists what this file can do.
#
# Everything is built under build/<device>/, one folder a device (and a sanitizer or architecture list), so that switching
# rebuilds nothing. <stage>/<stage> is a link to the program built last. With OUT=/some/folder the tree stays as it is.

export LC_ALL := C# figures have a decimal point, whatever the user's language
$(if $(filter 3.% 4.0 4.0.% 4.1 4.1.%,$(MAKE_VERSION)),$(error this is make $(MAKE_VERSION), and GNU make 4.2 or later is needed))

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
.DEFAULT_GOAL := help
.PHONY: all help clean tests test test-all test-device test-quick test-trace fuzz sanitize mutations mutations-kernels \
        mutations-host trace trace-defects compare sweep ceilings results hopper trace-hopper plots pictures exercise bug

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

$(foreach s,$(STAGES),$(if $(findstring .name="$s",$(call table,$s)),,$(error $s/main.c has no .name = "$s": a stage has its folder's name)))
UNLISTED := $(filter-out $(STAGES),$(filter $(MAKECMDGOALS:%/=%),$(patsubst %/.,%,$(wildcard [0-9]*/.))))
$(if $(UNLISTED),$(error $(UNLISTED): common/ladder.txt has no line for it))

# ---- which device, and why ----------------------------------------------------------------------------------------------
REASON := as asked
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
  override CXX := $(or $(GNU_CXX),$(error the trace needs g++, and it is not there; clang cannot stand in))
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
whole   = -o $@.$$$$ && mv $@.$$$$ $@# it gets its name when it is done: another make may be at work in this tree
compile = $(call quiet,compile $<)$1 -MMD -MP -MT $@ -MF $(@:.o=.d) -c $< $(whole)
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
$(PROGRAMS) $(TESTS) $(PRIMER) $(OUT)/common/results/ceilings $(OUT)/notes/exercises/transpose:
	$(call quiet,link    $@)$(LINK) $(WRAPPED:%=-Xlinker --wrap=%) $^ -lm -o $@.$$$$ && $(READ_CODE) mv $@.$$$$ $@

# What a page shows: the stage, and before it the one it builds on if both are forward and no --variant is named, nor --blocks or
# --score, which it does not know.
before  = $(firstword $(subst /, ,$(call column,$1,2)))
watched = $(if $(findstring --variant,$(TRACE_OPTIONS))$(findstring --blocks,$(TRACE_OPTIONS))$(findstring --score,$(TRACE_OPTIONS))$(filter $1,$(BACKWARD) $(DECODING)),,$(filter $(STAGES),$(call before,$1))) $1

# ---- build a stage ------------------------------------------------------------------------------------------------------
all: $(STAGES) ## build every stage
.PHONY: $(STAGES) $(STAGES:%=%/) $(foreach s,$(STAGES),$s/$s $(call number,$s)) $(STAGES:%=trace-%) $(STAGES:%=watch-%) $(STAGES:%=profile-%)
number = $(firstword $(subst _, ,$1))
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
$(STAGES):
	$(if $(filter /%,$(OUT)),,@ln -sfn ../$< $@/$@)
	@echo "$(if $(filter /%,$(OUT)),$<,$@/$@) is built for the $(if $(on_gpu),GPU (arch $(CHIPS)),CPU device): $(REASON)"

clean: ## remove what was built
	rm -rf build $(foreach s,$(STAGES),$s/$s)

help: ## this list
	@echo "make <stage>         build one stage; then run it: ./<stage>/<stage> --help"
	@echo "stages: $(STAGES)" | fold -s -w 110 | sed 's/^/    /'
	@sed -n 's/^$$(STAGES:%=\([a-z-]*\)%)/\1<stage>/; s/^diff-%/diff-<stage>/; s/^\([a-z0-9_.<>-]*\):.*## \(.*\)/\1|\2/p' $(firstword $(MAKEFILE_LIST)) | \
	  while IFS='|' read t d; do printf 'make %-15s %s\n' "$$t" "$$d"; done
	@echo "Capitals in brackets: variables, as in make trace TRACE_OPTIONS=\"--seqlen 512\"; options: <stage> --help"
	@echo "DEVICE=auto|cuda|cpu   now: $(DEVICE) ($(REASON));  ARCH=\"75 80 89 90a\"   now: $(ARCH)"

# ---- tests --------------------------------------------------------------------------------------------------------------
# tests/*.c and tests/*.cu are programs that speak TAP, tests/*.t are Perl. grid*.c and figures.c are linked once a stage, and
# <stage>.c with that stage, against its table of variants, short.c with each backward stage. simt* examine the CPU device; simt_errors is run by its .t.
GRIDS   := $(STAGES:%=$(OUT)/tests/grid_%)
SHORT   := $(BACKWARD:%=$(OUT)/tests/short_%)
NOT_NOW := tests/grid% tests/figures% tests/short% tests/mutations% tests/trace% tests/watch% tests/notebook% $(if $(on_gpu),tests/simt%)
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
# What of the device tests/figures.c has of its own: the clock, above all. It counts what the oracle is asked, and notes what a
# terminal would be told.
$(OUT)/tests/figures_%: WRAPPED := device_time_ms device_time_replay_ms device_replay_end device_bandwidth device_alloc \
                                   samples_compute gradients_compute show_progress end_progress

tests: $(UNITS) $(GRIDS) ## build the test programs without running them

# `make test` takes a sixteenth of the grids' points, a third of the trace's problems, and of what takes long and finds little nothing.
test: export GRID_EVERY ?= 16
mutations: export GRID_EVERY ?= 3
test: ## the tests: on the CPU device, then on the GPU where there is one
	@$(MAKE) test-device DEVICE=cpu
	@$(if $(GNU_CXX),$(MAKE) test-trace,echo "the trace is not tested: g++ is not here")
	@$(if $(on_gpu),$(MAKE) test-device DEVICE=cuda,echo "tested on the CPU device only: $(REASON)")

test-all: ## and all the rest: the whole shape grid (sizes, masks, dtypes), every command in the notes
	@$(MAKE) test GRID_EVERY=1 TEST_ALL=1

test-device: $(UNITS) $(GRIDS) $(STAGES) $(PRIMER)
	$(PROVE) $(GRIDS) $(filter-out %/simt_errors,$(UNITS)) $(SCRIPTS)

test-quick: $(UNITS) $(GRIDS) ## the unit tests, and an eighth of the shape grid
	$(PROVE) $(filter-out %/simt_errors,$(UNITS))
	$(PROVE) $(GRIDS) :: --quick

fuzz: $(GRIDS) $(SHORT) ## random problems, each variant against the oracle (default N=1000 SEED=1 SECONDS=0: no time limit)
	@failed=0; for fuzz in $(GRIDS) $(SHORT); do $$fuzz --fuzz $(or $(N),1000) --seed $(or $(SEED),1) --seconds $(or $(SECONDS),0) || failed=1; done; exit $$failed

ifneq ($(on_gpu),)
sanitize: $(GRIDS)
	@sh tests/compute_sanitizer.sh $(GRIDS)
else
sanitize: ## the shape grid under AddressSanitizer and UBSan (CPU), or compute-sanitizer's four tools (GPU)
	@ASAN_OPTIONS=allocator_may_return_null=1 $(MAKE) test-quick SANITIZE=address,undefined KERNEL_OPTIMISE='-Og -g1'
endif

mutations: ## plant mistakes in kernels and host code, and see the tests catch them (default SEED=1 MUTANTS=200)
	@$(MAKE) mutations-kernels DEVICE=cpu && $(MAKE) mutations-host DEVICE=cpu
mutations-kernels mutations-host: mutations-%: tests $(STAGES) $(PRIMER)
	$(PROVE) tests/mutations_$*.t

# ---- what the memory sees -----------------------------------------------------------------------------------------------
# Decoding has few queries, and so a shape of its own. Both shapes have four of the largest key tiles, and several blocks.
traced = $(if $(filter $1,$(DECODING)),$(or $2,--heads 8 --kv-heads 2 --seqlen-k 1024),$(or $(TRACE_OPTIONS),--heads 2 --seqlen 256 --seqlen-k 1024))
ifndef TRACE
trace test-trace trace-defects trace-hopper $(STAGES:%=trace-%) $(STAGES:%=watch-%):
	@$(MAKE) DEVICE=cpu TRACE=1 $@
else
trace: $(PROGRAMS) ## what every stage's kernels do to memory, side by side (TRACE_OPTIONS; DECODE_OPTIONS for decoding)
	@echo 'options: $(call traced,$(NAIVE))$(foreach s,$(DECODING),; $s: $(call traced,$s,$(DECODE_OPTIONS)))'
	@{ $(foreach s,$(STAGES),$(call rows,$s) --trace $(call traced,$s,$(DECODE_OPTIONS));) } | \
	  sh common/classroom/table.sh trace_table

$(STAGES:%=trace-%): ## one stage in detail, a table a kernel (TRACE_OPTIONS)
	@$< --trace $(call traced,$(@:trace-%=%),$(TRACE_OPTIONS))

$(STAGES:%=watch-%): watch-%: ## an HTML page that shows a run by tiles and by lines: build/watch/<stage>.html (TRACE_OPTIONS)
	@sh common/classroom/watch.sh $(if $(filter /%,$(OUT)),$(OUT),build)/watch/$*.html \
	  '$(call traced,$*,$(TRACE_OPTIONS))' $^

trace-hopper: hopper

test-trace: $(OUT)/tests/trace $(PROGRAMS) $(PRIMER) ## the trace alone: accesses counted by hand; the kernels' bytes against the formulas, and no races
	$(PROVE) $< tests/trace.t tests/trace_output.t tests/watch.t tests/notebook.t tests/primer.t

trace-defects: $(PROGRAMS) ## mutations for the trace: remove each barrier, spoil three layouts, and see that it names the line
	$(PROVE) tests/trace_defects.t
endif

$(STAGES:%=profile-%): profile-%: $(if $(on_gpu),%) ## hardware counters of its kernels, by ncu (VARIANT, PROFILE_OPTIONS)
	@VARIANT='$(VARIANT)' sh common/classroom/profile.sh $(DEVICE) $(OUT)/$*/$* $(PROFILE_OPTIONS)

# ---- classroom ----------------------------------------------------------------------------------------------------------
# With PLOT=1 the tables are drawn as well, if nothing was wrong.
PICTURE = $(if $(filter /%,$(OUT)),$(OUT),build)/compare/compare.svg
compare: $(PROGRAMS) ## all stages side by side, a table per problem (COMPARE_OPTIONS, DECODE_OPTIONS; PLOT=1 draws them)
	@$(if $(PLOT),mkdir -p $(dir $(PICTURE)) && )\
	{ $(foreach s,$(filter-out $(DECODING),$(STAGES)),$(call rows,$s) $(COMPARE_OPTIONS);) \
	   $(foreach s,$(DECODING),$(call rows,$s) $(DECODE_OPTIONS);) } | \
	  sh common/classroom/table.sh compare $(if $(PLOT),plot=$(PICTURE).tsv)$(if $(PLOT), && \
	  python3 -B common/plots/compare.py $(PICTURE).tsv $(PICTURE))

sweep: $(PROGRAMS) ## lengths, head dims, masks: notes/results/<device>/sweep.csv; resumes (common/classroom/sweep.sh)
	@sh common/classroom/sweep.sh $(PROGRAMS)

$(OUT)/common/results/ceilings: $(call objects,common/results/ceilings.cu) $(LIBRARIES)
ceilings: $(if $(on_gpu),$(OUT)/common/results/ceilings) ## how fast this GPU's parts are, each alone, as notes/results/<device>/ceilings.tsv has it
	@$(or $<,echo "make ceilings needs a GPU: DEVICE=cuda" >&2; exit 2)

$(PRIMER): %: %.cu.o $(LIBRARIES)
ifneq ($(if $(on_gpu),$(filter 90,$(GPU_CC)),cpu),)
hopper: $(PRIMER) ## Hopper's instructions one at a time: notes/hopper.md; make trace-hopper: under the trace
	@$(PRIMER:%=% &&) true
else
hopper: # no such GPU
	@$(MAKE) DEVICE=cpu $@
endif

results: $(if $(on_gpu),$(STAGES) $(OUT)/common/results/ceilings) ## measure this GPU in ten minutes: notes/results/<device>/; resumes (PARTS)
	@$(if $(on_gpu),sh common/results/measure.sh $(OUT),echo "make results needs a GPU: DEVICE=cuda" >&2; exit 2)

plots: ## draw the results measured last, into pictures/ beside them; needs Python with matplotlib
	@python3 -B common/plots/plots.py $(PLOT_OPTIONS)
pictures: ## draw notes/pictures/ anew, as the notes show them
	@python3 -B common/plots/pictures.py && python3 -B common/plots/plots.py notes/results/nvidia-h200 notes/pictures

diff-%: ## diff-04: what 04 changes in what it builds on; diff-03-04; diff-loop_swap-split_q: two by name
	@sh common/classroom/diff.sh $*

$(OUT)/notes/exercises/transpose: $(call objects,notes/exercises/transpose_main.c notes/exercises/transpose.cu) $(LIBRARIES)
in_sh = MAKE='$(MAKE_COMMAND)' OUT='$(OUT)' TRACE_OUT='$(or $(filter /%,$(OUT:%=%-trace)),build/cpu-trace)' DEVICE=$(DEVICE) sh
exercise: ## the exercises of the notes: N=04.1 (note 04's first), then ANSWER=.. or HINT=1; without N a list
	@HINT='$(HINT)' $(in_sh) common/classroom/exercise.sh '$(N)' '$(ANSWER)' || [ $$? -eq 1 ] # "not yet" is no error of make's

bug: ## plant a mistake in a copy, guess, and see what sees it: N=04.12 (04's twelfth); without N a list
	@$(if $(on_gpu),$(MAKE) DEVICE=cpu $@,$(in_sh) common/classroom/bug.sh '$(N)')

-include $(shell [ -d $(OUT) ] && find $(OUT) -name '*.d')
