#!/usr/bin/env perl
# trace_defects.t - the trace must see what is wrong: plants defects in a scratch copy of the real kernels, and looks where
# the trace says they are.
#
#     make trace-defects            all; DEFECT=03_fa1 only those whose name contains that
#
# Every __syncthreads, __syncwarp, wait at an mbarrier and proxy_fence in the stages' folders is removed once: that must be a
# race, between lines of that kernel, or a standstill. If it is not, the kernel does not need the barrier, or it orders what no trace
# can see (%unseen). Then layouts are spoilt: that must show as bank conflicts or sectors, at the line that suffers.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Program;
use Scratch;

my $build = 'build/cpu-trace';
my $only  = $ENV{DEFECT};
# Additions to dQ do not race, in whatever order they come; that they come in one order is ordered's own.
my %unseen  = ('09_fa3_backward/ordered.cu' => qr/has_added\[|may_add\[|all lanes have added/);
my $barrier = qr/(?:__syncthreads|__syncwarp|proxy_fence)\(\)|mbarrier_wait\([^;]*\)(?=;)/;

# ---- layouts: [file, what it says, what it shall say, stage, variant, memory, how the trace names the line that suffers,
# what that line says] ----
my @layouts = (
    ['common/gpu/tile.cuh', 'row & 7 : (row >> 1) & 3', '0 : 0 * row', '01_tiled', 'mma', 'shared memory',
        qr/^tile\.cuh:LINE in mma\.cu/, qr/ldmatrix_x4/],
    ['01_tiled/fma.cu', 'PITCH = SLICE + 1', 'PITCH = SLICE', '01_tiled', 'fma', 'shared memory', qr/^fma\.cu:LINE/,
        qr/shared\.b\[/],
    ['00_naive/naive.cu', 'S[element] = visible', 'S[column * (size_t)p.seqlen_q + i.row] = visible', '00_naive', '00_naive',
        'S', qr/^naive\.cu:LINE/, qr/S\[column \*/],
);
my @barriers = map { my $file = $_; map { [$file, $_] } lines_with_barrier($file) }
    'common/gpu/eight.cuh', map { sort glob "$_/*.cu $_/*.cuh" } stages(); # [file, line number]

in_copies($build, sub { my ($try, $name, @what) = @{$_[0]}; $try->($name, @what) },
    grep { !defined $only || index($_->[1], $only) >= 0 }
    (map { [\&try_layout, "$_->[0]: $_->[2]", @$_] } @layouts),
    (map { [\&try_barrier, "$_->[0]:$_->[1] without its barrier", @$_] } @barriers));

sub try_layout {
    my ($name, $file, $from, $to, $stage, $variant, $memory, $line, $text) = @_;
    my $source = read_file($file);
    my $at = index $source, $from;
    return ["$name: the line is no longer there", 0] if $at < 0;
    my $spoilt = $source;
    substr($spoilt, $at, length $from) = $to;
    my ($rows, $log) = trace_with($file, $spoilt, $stage, [$variant =~ s/^00_//r], sub { [@_] }, '--heads 1 --seqlen 128');
    return ["$name: does not compile", 0, $log] if !$rows;
    my ($worst) = grep { /"(?:tensor|memory)": "\Q$memory\E"/ && /"worst": "[^"]/ } @$rows;
    my ($place) = ($worst // '') =~ /"worst": "([^"]*)"/;
    $place //= 'nowhere';
    (my $pattern = $line) =~ s/LINE/(\\d+)/;
    my ($number) = $place =~ /$pattern/;
    return ["$name: seen at $place", 0] if !defined $number;
    my $where = $place =~ /^tile/ ? 'common/gpu/tile.cuh' : $file;
    my @text = split /\n/, $where eq $file ? $spoilt : read_file($where);
    return ["$name: seen at $place", 1], ['... which is the line that suffers', $text[$number - 1] =~ $text, $text[$number - 1]];
}

sub lines_with_barrier {
    my ($file) = @_;
    my @lines = split /^/, read_file($file);
    return grep { $lines[$_ - 1] =~ $barrier && !($unseen{$file} && $lines[$_ - 1] =~ $unseen{$file}) } 1 .. @lines;
}

sub try_barrier {
    my ($name, $file, $number) = @_;
    my ($stage, $base) = $file =~ m{(.*)/(.*)};
    $stage = '06_fp8' if $stage eq 'common/gpu';
    my @lines = split /^/, read_file($file);
    $lines[$number - 1] =~ s/$barrier//;
    # Decoding takes few queries. Here a piece has several tiles, and one piece the end of one head and the beginning of the
    # next; then a piece has whole heads. Between whole heads no ticket is drawn: whether a barrier there is missed must not
    # hang on which block comes last.
    # A ring must go round, and a block have several query tiles, also short ones: there are more than multiprocessors.
    my %shapes = ('08_fa3' => ['--heads 3 --seqlen 300 --seqlen-k 900 --lengths 700',
                               '--heads 2 --seqlen 300 --seqlen-k 900 --causal --head-dim 128',
                               '--heads 45 --seqlen 200 --seqlen-k 100 --roofline t4', '--heads 45 --seqlen 200 --seqlen-k 300 --causal --roofline t4'],
        '06_fp8' => ['--heads 1 --seqlen 200 --causal --smooth-k', '--heads 1 --seqlen 300 --seqlen-k 900 --head-dim 128',
                     '--heads 45 --seqlen 200 --seqlen-k 100 --roofline t4'],
        '07_flash_decoding' => ['--heads 4 --kv-heads 2 --seqlen 3 --seqlen-k 2500 --causal',
                                '--heads 16 --seqlen 1 --seqlen-k 40', '--heads 2 --seqlen 1 --seqlen-k 600 --kv-cache e4m3'],
        '09_fa3_backward' => ['--heads 2 --kv-heads 1 --seqlen 300 --seqlen-k 400 --lengths 350',
                              '--heads 1 --seqlen 300 --causal --head-dim 128', '--heads 45 --seqlen 100 --seqlen-k 200 --roofline t4'],
        '10_block_sparse' => ['--heads 3 --seqlen 300 --seqlen-k 900 --lengths 700', '--heads 2 --seqlen 300 --seqlen-k 900 --causal --head-dim 128',
                              '--heads 45 --seqlen 200 --seqlen-k 100 --roofline t4'],
        '11_score_mod' => ['--heads 1 --seqlen 200 --causal', '--heads 1 --seqlen 200 --head-dim 128', '--heads 1 --seqlen 200 --lengths 0 --score sink'],
        decoding => ['--heads 4 --kv-heads 2 --seqlen 3 --seqlen-k 2500 --causal']);
    my $shapes = $shapes{$stage} // $shapes{kind_of($stage)} // ['--heads 1 --seqlen 200 --causal', '--heads 1 --seqlen 200 --head-dim 128'];
    # All kernels with that line and all shapes, until one shows it.
    my ($seen, $log) = trace_with($file, join('', @lines), $stage, [kernels_with($stage, $file)],
        sub { race_or_standstill($base, @_) }, @$shapes);
    return ["$name: " . ($seen // ($log ? 'does not compile' : 'no race')), defined $seen, $log];
}

# What the trace's rows say of a kernel without one of its barriers.
sub race_or_standstill {
    my ($base, @rows) = @_;
    my @races = map { [/"earlier": "([^"]*)", "later": "([^"]*)"/] } grep { /"race"/ } @rows;
    # Where the kernel comes to a standstill, the races stand behind that.
    my $all = join '', @rows;
    push @races, [$1, $2] while $all =~ /^RACE in .* at (.*)\n.* at (.*): the same byte/mg;
    my ($here) = grep { $base =~ /\.cuh$/ || "@$_[0] " =~ /\b\Q$base\E:/ && "@$_[1] " =~ /\b\Q$base\E:/ } @races;
    return $here ? "@$here[0] and @$here[1]" : $all =~ /no thread can continue/ ? 'a standstill' : undef;
}

# The stage's kernels that are made of the file: themselves, or as they include it.
sub kernels_with {
    my ($stage, $file) = @_;
    return grep { read_file("$build/$stage/$_.cu.d") =~ s{(?<!\S)\w+/\.\./}{}gr =~ /(?<!\S)\Q$file\E(?!\S)/ } map { m{/(\w+)\.cu$} } glob "$stage/*.cu";
}

# Builds the stage with the file changed, one kernel of several at a time, and traces that (all, if it is not a variant's) with
# each list of options. Ends where $look, given the JSON rows, returns something, and returns it, and the compiler's words if
# they are an error.
sub trace_with {
    my ($file, $text, $stage, $kernels, $look, @runs) = @_;
    my $main = read_file("$stage/main.c");
    return with_file($file, $text, sub {
        for my $kernel (@$kernels) {
            my @others = map { "-o $_" } grep { $_ ne "$build/$stage/$kernel.cu.o" } glob "$build/*/*.cu.o";
            my ($built, $log) = built("$build/$stage/$stage", 'TRACE=1', @others);
            return (undef, $log) if !$built;
            my $variant = $main =~ /^ +\{\.name = "$kernel"/m ? "--variant $kernel" : '';
            for my $options (@runs) {
                my $seen = $look->(`$build/$stage/$stage --trace --json $options $variant 2>&1`);
                return ($seen) if defined $seen;
            }
        }
        return;
    });
}
