#!/usr/bin/env perl
# trace_defects.t - the trace must see what is wrong: plants defects in a scratch copy of the real kernels, and looks where
# the trace says they are.
#
#     make trace-defects            all; DEFECT=03_fa1 only those whose name contains that
#
# Every barrier of every kernel is removed once: that must be a race, between lines of that kernel. If it is not, the kernel
# does not need the barrier. Then layouts are spoilt: that must show as bank conflicts or sectors, at the line that suffers.
use strict;
use warnings;
use Test::More;
use Cwd qw(getcwd);
use File::Temp qw(tempdir);

my $root  = getcwd;
my $build = 'build/cpu-trace';
my $only  = $ENV{DEFECT};
my $copy  = tempdir(CLEANUP => 1);
# Headers and objects travel with their times, so that make compiles only what a defect touched.
system("cp -a Makefile common tests 0?_* '$copy' && mkdir -p '$copy/build' && cp -a '$build' '$copy/build/'") == 0
    or BAIL_OUT("cannot copy the tree to $copy");
chdir $copy or BAIL_OUT("cannot enter $copy");

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
for (@layouts) {
    my ($file, $from, $to, $stage, $variant, $memory, $line, $text) = @$_;
    my $name = "$file: $to";
    next if defined $only && index($name, $only) < 0;
    my $source = read_file($file);
    my $at = index $source, $from;
    if ($at < 0) { fail("$name: the line is no longer there"); next }
    my $spoilt = $source;
    substr($spoilt, $at, length $from) = $to;
    my ($rows, $log) = with_file($file, $spoilt, $stage, $variant, '--heads 1 --seqlen 128');
    if (!$rows) { fail("$name: does not compile"); diag($log); next }
    my ($worst) = grep { /"(?:tensor|memory)": "\Q$memory\E"/ && /"worst": "[^"]/ } @$rows;
    my ($place) = ($worst // '') =~ /"worst": "([^"]*)"/;
    $place //= 'nowhere';
    (my $pattern = $line) =~ s/LINE/(\\d+)/;
    my ($number) = $place =~ /$pattern/;
    ok(defined $number, "$name: seen at $place") or next;
    my $where = $place =~ /^tile/ ? 'common/gpu/tile.cuh' : $file;
    my @text = split /\n/, $where eq $file ? $spoilt : read_file($where);
    like($text[$number - 1], $text, '... which is the line that suffers');
}

# ---- barriers ----
for my $file (sort glob '0?_*/*.cu 0?_*/*.cuh') {
    my ($stage, $base) = $file =~ m{(.*)/(.*)};
    next unless -e "$stage/main.c";
    my $source = read_file($file);
    my @lines = split /^/, $source;
    for my $i (0 .. $#lines) {
        next unless $lines[$i] =~ /__sync(?:threads|warp)\(\)/;
        my $name = "$file:" . ($i + 1) . ' without its barrier';
        next if defined $only && index($name, $only) < 0;
        my @changed = @lines;
        $changed[$i] =~ s/__sync(?:threads|warp)\(\)//;
        # Decoding takes few queries. Here a piece has several tiles, and one piece the end of one head and the beginning of the next.
        my @shapes = $stage =~ /fp8/ ? ('--heads 1 --seqlen 200 --causal --smooth-k', '--heads 1 --seqlen 300 --head-dim 128')
            : $stage =~ /decoding/
            ? ('--heads 4 --kv-heads 2 --seqlen 3 --seqlen-k 2500 --causal', '--heads 2 --seqlen 1 --seqlen-k 600 --kv-cache e4m3')
            : ('--heads 1 --seqlen 200 --causal', '--heads 1 --seqlen 200 --head-dim 128');
        my ($rows, $log) = with_file($file, join('', @changed), $stage, '', @shapes);
        if (!$rows) { fail("$name: does not compile"); diag($log); next }
        my @races = map { [/"earlier": "([^"]*)", "later": "([^"]*)"/] } grep { /"race"/ } @$rows;
        my @here = grep { $base =~ /\.cuh$/ || "@$_[0] " =~ /\b\Q$base\E:/ && "@$_[1] " =~ /\b\Q$base\E:/ } @races;
        ok(@here > 0, "$name: " . (@here ? "$here[0][0] and $here[0][1]" : 'no race'));
    }
}
chdir $root;
done_testing;

# Builds the stage with the file changed, traces it with each list of options, and puts the file back, times included: what
# was compiled from the changed file must not be taken for the original's. Returns the JSON rows, or undef and the compiler's
# words.
sub with_file {
    my ($file, $text, $stage, $variant, @runs) = @_;
    my $source = read_file($file);
    my @times = (stat $file)[8, 9];
    write_file($file, $text);
    my $log = `make --no-print-directory -j2 DEVICE=cpu TRACE=1 WARN=-w COMMIT=scratch $build/$stage/$stage 2>&1`;
    my $built = $? == 0;
    $variant = "--variant $variant" if $variant;
    my @rows = $built ? map { `$build/$stage/$stage --trace --json $_ $variant` } @runs : ();
    write_file($file, $source);
    utime $times[0], $times[1], $file;
    system("rm -rf '$build' && cp -a '$root/$build' '$build'");
    return $built ? (\@rows, $log) : (undef, $log);
}
sub read_file { open my $in, '<', $_[0] or die "$_[0]: $!"; local $/; return <$in> }
sub write_file { open my $out, '>', $_[0] or die "$_[0]: $!"; print $out $_[1]; close $out or die "$_[0]: $!" }
