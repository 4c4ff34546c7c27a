# FlashAttention, stage by stage. `make help` lists what this file can do.
#
# Everything is built under build/<device>/, one folder a device (and a sanitizer or architecture list), so that switching
# between them rebuilds nothing. <stage>/<stage> is a link to the program built last.

DEVICE   ?= auto
SANITIZE ?=
NVCC     ?= $(firstword $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc))
GPU_CC   := $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d .)
STAGES   := $(patsubst %/main.c,%,$(sort $(wildcard 0?_*/main.c)))

# All cores compile, unless -j says otherwise; not if there are several goals, as their order may matter (make clean all).
JOBS     ?= $(shell getconf _NPROCESSORS_ONLN)
ifeq ($(MAKELEVEL)$(filter-out 0 1,$(words $(MAKECMDGOALS))),0)
  MAKEFLAGS += --jobs=$(JOBS)
endif

# ---- which device, and why ----------------------------------------------------------------------------------------------
ifeq ($(DEVICE),auto)
  DEVICE := $(if $(NVCC),$(if $(GPU_CC),cuda,cpu),cpu)
  REASON := $(if $(NVCC),$(if $(GPU_CC),nvcc and a GPU are here,nvcc is here but nvidia-smi shows no GPU),nvcc is not installed)
else
  REASON := as asked
endif
ifeq ($(filter $(DEVICE),cpu cuda),)
  $(error DEVICE=$(DEVICE): choose auto, cuda or cpu)
endif
ifeq ($(DEVICE)-$(NVCC),cuda-)
  $(error DEVICE=cuda needs nvcc from the CUDA Toolkit; set NVCC=/path/to/nvcc if it is not on the PATH)
endif

# ---- compilers ----------------------------------------------------------------------------------------------------------
# ARCH: compute capabilities to compile for (75, 80, 89, 90a: machine code; compute_75: PTX that the driver compiles).
ifeq ($(origin CC),default)
  CC := gcc
endif
ifeq ($(origin CXX),default)
  CXX := g++
endif
ARCH  ?= $(if $(GPU_CC),$(patsubst 90,90a,$(GPU_CC)),75 80 89 90a)
space := $(subst ,, )
gencode = -gencode arch=$(if $(filter compute_%,$1),$1$(,)code=$1,compute_$1$(,)code=sm_$1)
, := ,

WARN   ?= -Wall -Wextra
KERNEL_OPTIMISE ?= -O3
CFLAGS := -std=c11 -O2 -g $(WARN) -pthread
ifeq ($(DEVICE),cuda)
  OUT       := build/cuda-$(subst $(space),-,$(strip $(ARCH)))
  KERNEL_CC  = $(NVCC) -std=c++17 -O3 -lineinfo $(foreach a,$(ARCH),$(call gencode,$a)) -Xcompiler -Wall
  LINK       = $(NVCC) $(foreach a,$(ARCH),$(call gencode,$a)) -Xcompiler -pthread
  MACHINE   := common/device/device_cuda.cu
else
  # no contraction to fused multiply-adds: results must not depend on the compiler's mood
  OUT       := build/cpu$(addprefix -,$(subst $(,),-,$(SANITIZE)))
  SAN       := $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-sanitize-recover=all -fno-omit-frame-pointer)
  KERNEL_CC  = $(CXX) -x c++ -std=c++17 $(KERNEL_OPTIMISE) -g -ffp-contract=off $(WARN) -Wno-unknown-pragmas -pthread $(SAN)
  LINK       = $(CXX) -pthread $(SAN)
  MACHINE   := common/device/device_cpu.c $(wildcard common/cpu/*.c)
endif

is_gnu  = $(findstring Free Software Foundation,$(shell $1 --version 2>/dev/null))
GNU_CXX = $(firstword $(foreach c,$(CXX) g++,$(if $(call is_gnu,$c),$c)))

# TRACE=1: the kernels report each access to memory (common/trace/trace.c, notes/trace.md). -fsanitize=thread inserts the calls,
# the options after it keep them true to the source; clang would split or lose the 16-byte ones.
ifdef TRACE
  ifneq ($(DEVICE),cpu)
    $(error TRACE=1 is for the CPU device: add DEVICE=cpu)
  endif
  override CXX := $(GNU_CXX)
  ifeq ($(CXX),)
    $(error the trace needs g++, and it is not there; clang cannot stand in)
  endif
  OUT        := build/cpu-trace
  CFLAGS     += -DTRACE
  KERNEL_CC   = $(CXX) -x c++ -std=c++17 -O1 -g -ffp-contract=off $(WARN) -Wno-unknown-pragmas -Wno-tsan -pthread -DTRACE \
                -fsanitize=thread --param tsan-instrument-func-entry-exit=0 -fno-tree-sra
  LINK        = $(CXX) -pthread -no-pie -Wl,--wrap=expf,--wrap=exp2f
  MACHINE    := common/device/device_cpu.c $(wildcard common/cpu/*.c common/trace/*.c)
endif

# `make V=1` prints the commands as they are.
ifeq ($(V),)
  quiet = @echo "  $1";
endif

# ---- objects ------------------------------------------------------------------------------------------------------------
objects = $(patsubst %,$(OUT)/%.o,$1)
COMMON := $(wildcard common/harness/*.c common/judge/*.c common/host/*.c) $(MACHINE)
# A backward stage starts from another stage's forward pass.
FORWARD_05_fa2_backward := 04_fa2/split_q.cu
NAIVE  := 00_naive/naive.c 00_naive/traffic.c 00_naive/naive.cu

$(OUT)/%.c.o: %.c
	@mkdir -p $(@D)
	$(call quiet,compile $<)$(CC) $(CFLAGS) $(SAN) -MMD -MP -c $< -o $@

$(OUT)/%.cu.o: %.cu
	@mkdir -p $(@D)
	$(call quiet,compile $<)$(KERNEL_CC) -MMD -MP -MF $(@:.o=.d) -c $< -o $@

# The commit a binary was built from stands in its JSON rows.
COMMIT ?= $(or $(shell git describe --always --dirty 2>/dev/null),unknown)
$(OUT)/common/harness/records.c.o: CFLAGS += -DFA_COMMIT='"$(COMMIT)"'
$(OUT)/common/harness/records.c.o: $(OUT)/commit-$(COMMIT)
$(OUT)/commit-%:
	@mkdir -p $(@D) && rm -f $(OUT)/commit-* && touch $@

# ---- stages -------------------------------------------------------------------------------------------------------------
.PHONY: all $(STAGES)
all: $(STAGES)
.DEFAULT_GOAL := help

define stage_rules
$(OUT)/$1/$1: $(call objects,$(sort $(wildcard $1/*.c $1/*.cu) $(FORWARD_$1) $(NAIVE)) $(COMMON))
	$$(call quiet,link    $$@)$$(LINK) $$^ -o $$@ -lm
$1: $(OUT)/$1/$1
	@ln -sfn ../$(OUT)/$1/$1 $1/$1
	@echo "$1/$1 is built for the $(if $(filter cuda,$(DEVICE)),GPU (arch $(ARCH)),CPU device): $(REASON)"
endef
$(foreach s,$(filter-out 00_naive,$(STAGES)) 00_naive,$(eval $(call stage_rules,$s)))

# ---- tests --------------------------------------------------------------------------------------------------------------
# tests/*.c and tests/*.cu are programs that speak TAP; tests/grid*.c are linked once a stage, against that stage's table of
# variants; tests/*.t are Perl. Files named simt* examine the CPU device itself; simt_errors is run by its .t.
.PHONY: test test-all test-device test-quick tests fuzz mutations mutations-kernels mutations-host
# A test that calls make starts afresh, with the same device and compilers. A GPU takes one test at a time.
PROVE       := env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL DEVICE=$(DEVICE) CC='$(CC)' CXX='$(CXX)' \
               prove --exec '' --jobs $(if $(filter cuda,$(DEVICE)),1,$(JOBS))
UNIT_C      := $(filter-out tests/grid% tests/figures.c,$(wildcard tests/*.c))
UNIT_CU     := $(filter-out $(if $(filter cuda,$(DEVICE)),tests/simt%) $(if $(TRACE),,tests/trace%),$(wildcard tests/*.cu))
UNITS       := $(patsubst tests/%,$(OUT)/tests/%,$(basename $(UNIT_C) $(UNIT_CU))) $(STAGES:%=$(OUT)/tests/figures_%)
GRIDS       := $(patsubst %,$(OUT)/tests/grid_%,$(STAGES))
SCRIPTS     := $(filter-out $(if $(filter cuda,$(DEVICE)),tests/simt%) tests/mutations% tests/trace%,$(wildcard tests/*.t))

.SECONDARY: $(call objects,$(UNIT_C) $(UNIT_CU)) # keep them; of all targets it would keep records.c.o from following the commit
$(OUT)/tests/%: $(OUT)/tests/%.c.o $(call objects,$(NAIVE) $(COMMON))
	$(call quiet,link    $@)$(LINK) $^ -o $@ -lm
$(OUT)/tests/%: $(OUT)/tests/%.cu.o $(call objects,$(NAIVE) $(COMMON))
	$(call quiet,link    $@)$(LINK) $^ -o $@ -lm

$(OUT)/tests/measuring: $(call objects,tests/measuring.c $(NAIVE) $(COMMON))
	$(call quiet,link    $@)$(LINK) $^ -o $@ -lm

$(OUT)/%/main_as_table.o: %/main.c
	@mkdir -p $(@D)
	$(call quiet,compile $<)$(CC) $(CFLAGS) $(SAN) -Dmain=stage_main -MMD -MP -c $< -o $@
grid_sources = tests/grid.c tests/grid_case.c tests/grid_$(if $(FORWARD_$1),backward,forward).c
define grid_rule
$(OUT)/tests/grid_$1: $(OUT)/$1/main_as_table.o $(call objects,$(call grid_sources,$1) $(sort $(filter-out %/main.c,$(wildcard $1/*.c $1/*.cu)) $(FORWARD_$1) $(NAIVE)) $(COMMON))
	$$(call quiet,link    $$@)$$(LINK) $$^ -o $$@ -lm
$(OUT)/tests/figures_$1: $(OUT)/tests/figures.c.o $(OUT)/$1/main_as_table.o \
		$(call objects,$(sort $(filter-out %/main.c,$(wildcard $1/*.c $1/*.cu)) $(FORWARD_$1) $(NAIVE)) $(COMMON))
	$$(call quiet,link    $$@)$$(LINK) $(WRAPPED:%=-Xlinker --wrap=%) $$^ -o $$@ -lm
endef
# What of the device tests/figures.c has of its own: the clock, above all.
WRAPPED := device_time_ms device_time_replay_ms device_replay_end device_bandwidth device_alloc
$(foreach s,$(STAGES),$(eval $(call grid_rule,$s)))

$(OUT)/tests/fp8_options: $(OUT)/06_fp8/main_as_table.o $(call objects,$(filter-out %/main.c,$(wildcard 06_fp8/*.c 06_fp8/*.cu)))

tests: $(UNITS) $(GRIDS) ## build the test programs without running them

# `make test` takes a third of the grids' points, and of what takes long and finds little (TEST_ALL) nothing.
test mutations: export GRID_EVERY ?= 3
test: ## the tests: on the CPU device, then on the GPU where there is one
	@$(MAKE) --no-print-directory test-device DEVICE=cpu
	@$(if $(GNU_CXX),$(MAKE) --no-print-directory test-trace,echo "the trace is not tested: g++ is not here")
	@$(if $(and $(NVCC),$(GPU_CC)),$(MAKE) --no-print-directory test-device DEVICE=cuda,echo "no GPU here: tested on the CPU device only")

test-all: ## and all the rest: every point of the grids, every command of the notes as it stands there
	@$(MAKE) --no-print-directory test GRID_EVERY=1 TEST_ALL=1

test-device: $(UNITS) $(GRIDS) $(STAGES)
	TEST_BUILD=$(OUT) TEST_DEVICE=$(DEVICE) $(PROVE) \
		$(GRIDS) $(filter-out %/simt_errors,$(UNITS)) $(SCRIPTS)

test-quick: $(UNITS) $(GRIDS) ## the unit tests, and an eighth of the grid
	$(PROVE) $(filter-out %/simt_errors,$(UNITS))
	$(PROVE) $(GRIDS) :: --quick

test-trace: ## the trace alone: textbook values; the kernels' bytes against the formulas, and no races
	@$(MAKE) --no-print-directory DEVICE=cpu TRACE=1 test-trace-built
test-trace-built: $(OUT)/tests/trace $(foreach s,$(STAGES),$(OUT)/$s/$s)
	TEST_BUILD=$(OUT) $(PROVE) $(OUT)/tests/trace tests/trace.t

fuzz: $(GRIDS) ## random problems for every variant against the fp64 oracle (N=1000 SEED=1 SECONDS=0: as long as it takes)
	@failed=0; for grid in $(GRIDS); do $$grid --fuzz $(or $(N),1000) --seed $(or $(SEED),1) --seconds $(or $(SECONDS),0) || failed=1; done; exit $$failed

mutations: ## plant mistakes in the kernels and in the host's code, and see the tests catch them (SEED=1 MUTANTS=200)
	@$(MAKE) --no-print-directory mutations-kernels DEVICE=cpu
	@$(MAKE) --no-print-directory mutations-host DEVICE=cpu
mutations-kernels: $(STAGES)
	TEST_BUILD=$(OUT) $(PROVE) tests/mutations.t
mutations-host: tests $(STAGES)
	TEST_BUILD=$(OUT) TEST_DEVICE=$(DEVICE) $(PROVE) tests/mutations_host.t

trace-defects: ## the same for the trace: remove each barrier, spoil each layout, and see where it says it is
	@$(MAKE) --no-print-directory DEVICE=cpu TRACE=1 trace-defects-built
trace-defects-built: $(foreach s,$(STAGES),$(OUT)/$s/$s)
	$(PROVE) tests/trace_defects.t

# ---- the trace ----------------------------------------------------------------------------------------------------------
# Shape and chip: make trace-04_fa2 TRACE_OPTIONS="--seqlen 512 --causal --roofline a100"
.PHONY: trace trace-built test-trace test-trace-built trace-defects trace-defects-built $(addprefix trace-,$(STAGES)) $(addprefix trace-built-,$(STAGES))
TRACE_OPTIONS ?= --heads 1 --seqlen 256

define trace_rules
trace-$1:
	@$$(MAKE) --no-print-directory DEVICE=cpu TRACE=1 trace-built-$1
trace-built-$1: $$(OUT)/$1/$1
	@$$< --trace $$(TRACE_OPTIONS)
endef
$(foreach s,$(STAGES),$(eval $(call trace_rules,$s)))

trace: ## what every stage's kernels do to memory, side by side; trace-<stage>: one stage in detail
	@$(MAKE) --no-print-directory DEVICE=cpu TRACE=1 trace-built
trace-built: $(foreach s,$(STAGES),$(OUT)/$s/$s)
	@perl common/classroom/trace_table.pl $(foreach s,$(STAGES),$(OUT)/$s/$s) -- $(TRACE_OPTIONS)

# ---- ncu ----------------------------------------------------------------------------------------------------------------
# The first launch of each kernel of the variant VARIANT (the stage's last if not given), at the shape in PROFILE_OPTIONS.
.PHONY: $(addprefix profile-,$(STAGES))
NCU ?= $(firstword $(shell command -v ncu 2>/dev/null) $(wildcard /usr/local/cuda/bin/ncu))
PROFILE_SECTIONS := SpeedOfLight ComputeWorkloadAnalysis MemoryWorkloadAnalysis WarpStateStats LaunchStats Occupancy
$(addprefix profile-,$(STAGES)): profile-%: # profile-<stage>: hardware counters of its kernels, by ncu
ifneq ($(DEVICE)-$(if $(NCU),ncu),cuda-ncu)
	@echo "profile-$*: needs a GPU and ncu of the CUDA Toolkit (device: $(DEVICE), ncu: $(or $(NCU),not found)); make trace-$* counts without them" >&2; exit 2
else
	@$(MAKE) --no-print-directory $*
	@variant=$(VARIANT); test -n "$$variant" || variant=$$(./$*/$* --help | awk '/^variants/ {list = 1; next} list && NF {if ($$1 != "00_naive" || !last) last = $$1} END {print last}'); \
		$(NCU) --log-file stderr --kernel-id :::1 $(PROFILE_SECTIONS:%=--section %) ./$*/$* --variant $$variant --no-validate --iters 1 $(PROFILE_OPTIONS) >/dev/null
endif

# ---- the rest -----------------------------------------------------------------------------------------------------------
.PHONY: help clean sanitize format tables
# compute-sanitizer slows a kernel down a hundred times, so it gets a third of the quick grid's points: about 50 a variant, in
# every dtype, head dim and mask, one to five tiles long.
sanitize: ## the grid under AddressSanitizer and UBSan (CPU), or compute-sanitizer's four tools (GPU)
ifeq ($(DEVICE),cuda)
	@$(MAKE) --no-print-directory DEVICE=cuda $(GRIDS)
	@for stage in $(STAGES); do for tool in memcheck racecheck synccheck initcheck; do \
		start=$$(date +%s); log=$(OUT)/tests/$$tool.log; printf '%-9s %-18s ' $$tool $$stage; \
		GRID_EVERY=$(or $(GRID_EVERY),24) compute-sanitizer --tool $$tool --error-exitcode 1 --log-file $$log $(OUT)/tests/grid_$$stage --quick >/dev/null \
		  && echo "$$(tail -n 1 $$log), $$(($$(date +%s) - start)) s" || { cat $$log; exit 1; }; done; done
else
	@$(MAKE) --no-print-directory DEVICE=cpu SANITIZE=address,undefined KERNEL_OPTIMISE=-O1 test-quick # -O1: compiles in a third of the time
endif

tables: ## rewrite the figures in README and notes from the result files
	perl notes/tables.pl

# The host's C. Not main.c, which are tables, and nothing of kernels: clang-format knows neither macros that take a body nor a
# comment before #pragma unroll.
format: ## clang-format over the host's sources
	clang-format -i $(filter-out %/main.c %_cpu.h,$(wildcard common/*.h common/*/*.[ch] 0?_*/*.c tests/*.[ch]))

clean: ## remove what was built
	rm -rf build $(foreach s,$(STAGES),$s/$s)

help: ## this list
	@echo "make <stage>     build one stage; then run it: ./<stage>/<stage> --help"
	@echo "                 stages: $(STAGES)"
	@echo "make all         build every stage"
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read t d; do printf 'make %-11s %s\n' "$$t" "$$d"; done
	@echo "DEVICE=auto|cuda|cpu   now: $(DEVICE) ($(REASON));  ARCH=\"75 80 89 90a\"   now: $(ARCH)"

-include $(shell [ -d $(OUT) ] && find $(OUT) -name '*.d')

# ---- classroom ----------------------------------------------------------------------------------------------------------
# Options go to the scripts: make compare COMPARE_OPTIONS="--seqlen 1024 --causal"; make sweep SWEEP_OPTIONS="--lengths 512,1024".
.PHONY: compare sweep fp8-errors plots intensity intensity-built diff exercise
PROGRAMS := $(foreach s,$(STAGES),$(OUT)/$s/$s)
DECODING := $(filter %decoding,$(PROGRAMS))

compare: $(PROGRAMS) ## every stage on one problem, in one table (COMPARE_OPTIONS; DECODE_OPTIONS for 07)
	@perl common/classroom/compare.pl $(filter-out $(DECODING),$(PROGRAMS)) -- $(COMPARE_OPTIONS) $(if $(DECODING),-- $(DECODING) -- $(DECODE_OPTIONS))

sweep: $(PROGRAMS) ## lengths, head dims and masks, into notes/results/<device>/sweep.csv; resumes (SWEEP_OPTIONS)
	@perl common/classroom/sweep.pl $(PROGRAMS) -- $(SWEEP_OPTIONS)

fp8-errors: $(OUT)/06_fp8/06_fp8 ## how far 8 bits are from the truth: format, scales, rotation, smoothing (FP8_ERRORS_OPTIONS)
	@perl common/classroom/fp8_errors.pl $< $(FP8_ERRORS_OPTIONS)

plots: ## draw notes/pictures/ from the result files; needs Python with matplotlib (PLOT_OPTIONS)
	@command -v python3 >/dev/null || { echo "plots need python3 with matplotlib" >&2; exit 2; }
	@python3 -B common/plots/pictures.py && python3 -B common/plots/plots.py $(PLOT_OPTIONS)

intensity: ## FLOPs a byte of every variant, by the trace, into notes/results/intensity.tsv, for the roofline
	@$(MAKE) --no-print-directory DEVICE=cpu TRACE=1 intensity-built
intensity-built: $(filter-out $(DECODING),$(PROGRAMS))
	@perl common/classroom/intensity.pl $^

diff-%:
	@perl common/classroom/diff.pl $*
diff: ## the lesson between two kernels: make diff-03-04, make diff-04.1-04.2
	@perl common/classroom/diff.pl

# One kernel file of a stage replaced by what lies in exercises/<number>/; common/classroom/exercise.pl calls these.
ifdef EXERCISE
SCRATCH  := $(wildcard exercises/$(EXERCISE)/*.cu)
REPLACED := $(patsubst exercises/$(EXERCISE)/%,$(OUT)/$(EXERCISE_STAGE)/%.o,$(SCRATCH))
with_scratch = $(filter-out $(REPLACED),$(call objects,$1 $(FORWARD_$(EXERCISE_STAGE)) $(NAIVE) $(COMMON))) $(call objects,$(SCRATCH))
$(call objects,$(SCRATCH)): KERNEL_CC += -I$(EXERCISE_STAGE)
$(OUT)/exercises/$(EXERCISE)/$(EXERCISE_STAGE): $(sort $(call with_scratch,$(wildcard $(EXERCISE_STAGE)/*.c $(EXERCISE_STAGE)/*.cu)))
	$(call quiet,link    $@)$(LINK) $^ -o $@ -lm
$(OUT)/exercises/$(EXERCISE)/grid: $(OUT)/$(EXERCISE_STAGE)/main_as_table.o $(sort $(call with_scratch, \
		$(call grid_sources,$(EXERCISE_STAGE)) \
		$(filter-out %/main.c,$(wildcard $(EXERCISE_STAGE)/*.c $(EXERCISE_STAGE)/*.cu))))
	$(call quiet,link    $@)$(LINK) $^ -o $@ -lm
endif

exercise: ## the exercises of the notes: make exercise N=04.1, then with ANSWER=...; without N a list
	@MAKE="$(MAKE_COMMAND)" OUT=$(OUT) DEVICE=$(DEVICE) perl common/classroom/exercise.pl $(N) $(if $(ANSWER),-- "$(ANSWER)")
