#!/usr/bin/env perl
# rooms.t - who may know whom: every #include of the tree but the notes', and every symbol that one object file takes from another, goes along
# one of the arrows of this table, and no file includes or calls itself by a detour.
#
# The rooms are the folders of common/, `headers` those that lie in common/ itself, `stage` any folder of a stage. host/errors.h
# is at the bottom: it knows nobody, and all may know it.
use strict;
use warnings;
use Encode qw(decode);
use FindBin;
use lib $FindBin::Bin;
use Scratch;
use Test::More;

my %arrows = (
    stage     => [qw(headers gpu device host)],
    labs      => [qw(harness trace gpu device cpu headers host)], # the judge of the labs is a stage's program
    harness   => [qw(headers judge trace device host)],
    judge     => [qw(headers host)],
    trace     => [qw(headers cpu host)],
    gpu       => [qw(headers device cpu)],
    device    => [qw(cpu host)],
    cpu       => [qw(headers host)],
    results   => [qw(headers gpu device host)],
    host      => [qw(headers)],
    headers   => [],
    errors    => [],
);
# Symbols that meet in the middle: a header that both sides may read declares them.
my %seams = (
    harness_main  => ['stage -> harness'],
    naive_gradients => ['labs -> stage'],
    blocks_read => ['labs -> stage'],
    score_read => ['labs -> stage'],
    naive_variant => ['harness -> stage', 'labs -> stage'],
    __tsan_       => ['stage -> trace'],    # the compiler's
    __sanitizer_cov_trace_pc => ['stage -> trace'], # likewise
);

# ---- includes ----

my @files = grep { !m{^build/} } glob '{common,common/*,common/labs/*,[0-9]*_*,tests}/*.{c,h,cu,cuh}';
my @includes = map { includes_of($_) } @files;
cmp_ok(@includes, '>', 200, scalar(@includes) . ' includes');
is_deeply([grep { !-e $_->[1] } @includes], [], 'of files that are there');
is_deeply([wrong_includes(@includes)], [], 'each goes along an arrow');
is_deeply([circles(@includes)], [], 'no circle among the files');
is_deeply([circles(map { my $from = $_; map { [$from, $_] } @{$arrows{$from}} } keys %arrows)], [], 'nor among the arrows');

# ---- what nvcc 13.0 takes for something else ----

# An unrolled loop in an unrolled loop that is a branch of `if constexpr` without braces: where it is left out, the loop behind it goes,
# too.
my $bare = qr/(?:else|if constexpr \(.*\))\s+(?:if \(.*\)\s+)?(?:UNROLL|_Pragma)/;
is_deeply([grep { read_file($_) =~ $bare } grep { /\.cuh?$/ } @files], [], 'no unrolled loop is a branch without braces');
like("        else\n            UNROLL for (;;)", $bare, '... and one would be found');

# ---- a kernel can be read beside its page: 120 characters per line ----

my @narrow = grep { m{^\d\d_|^common/gpu/} } @files;
is_deeply([map { too_wide($_, read_file($_)) } @narrow], [], 'no line of a kernel is longer than 120 characters');
is_deeply([too_wide('a.cu', ('é' x 120) . " \n" . ('x' x 121) . "\n")], ['a.cu:2'], '... and one would be found');

# ---- calls ----

my $build = $ENV{TEST_BUILD} || 'build/cpu';
for my $objects (grep { -d "$_/common" } $build, "$build-trace") {
    my @calls = calls_in($objects);
    cmp_ok(@calls, '>', 100, "$objects: " . @calls . ' symbols that one file takes from another');
    is_deeply([wrong_calls(@calls)], [], 'each goes along an arrow');
    is_deeply([circles(@calls)], [], 'no circle among the files');
}

# ---- the path from main to a printed row ----

my ($path) = read_file('common/harness/program.c') =~ m{\A/\*.*?:\n \*\n((?: \*     \w+\.[ch] [^\n]*\n)+)}s;
my @path = map { "common/harness/$_" } $path =~ /^ \*     (\S+)/mg;
my ($told) = read_file('notes/adding_a_stage.md') =~ /to the launch, the judge and the printed row(.*?)\n\n/s;
is_deeply([$told =~ m{\(\.\./(\S+)\)}g], \@path, "notes/adding_a_stage.md names the files that program.c does");
is_deeply([grep { !-e } @path], [], 'which are there');
cmp_ok(@path, '<=', 5, 'at most 5 files');
cmp_ok(lines_of(@path), '<=', 600, 'of at most 600 lines together: ' . lines_of(@path));
my %on_path = map { $_ => 1 } @path;
my @calls_on_path = map { "$_->[0] > $_->[1]" } grep { $on_path{$_->[0]} && $on_path{$_->[1]} } calls_in($build);
for my $step ('program.c > launch.c', 'program.c > judge_row.c', 'launch.c > report.c') {
    my $call = $step =~ s{(\w+\.c)}{common/harness/$1}gr;
    ok(scalar(grep { $_ eq $call } @calls_on_path), "$step: a call");
}

# ---- all of this can fail ----

for (['common/host/npy.c', 'common/harness/row.h'], ['common/numeric.h', 'common/host/npy.h'],
    ['common/host/errors.c', 'common/problem.h'], ['04_fa2/split_q.cu', '03_fa1/fa1.cu'], ['12_context_parallel/shards.c', '12_context_parallel_backward/parts.h'], ['04_fa2/main.c', 'common/harness/run.h'], ['common/judge/compare.h', 'tests/tap.h']) {
    is_deeply([wrong_includes($_)], ["@$_[0] includes @$_[1]"], "planted: @$_[0] includes @$_[1]");
}
is(scalar circles(@includes, ['common/problem.h', 'common/stage.h']), 1, 'planted: a circle of two files');
is(scalar circles(@includes, ['common/host/npy.h', 'common/host/npy.h']), 1, 'planted: a circle of one');
is(scalar circles(['a', 'b'], ['b', 'c'], ['a', 'c'], ['c', 'a']), 1, 'planted: a circle of three');
for (['common/host/npy.c', 'common/harness/report.c', 'row_ok'], ['common/judge/compare.c', 'common/harness/program.c', 'harness_main'],
    ['04_fa2/main.c', '03_fa1/fa1.cu', 'fa1']) {
    is_deeply([wrong_calls($_)], ["@$_[0] takes @$_[2] from @$_[1]"], "planted: @$_[0] takes @$_[2] from @$_[1]");
}
done_testing;

# The lines of a text that have more characters than 120, without what is blank at their ends.
sub too_wide {
    my ($file, $text) = @_;
    my @lines = split /\n/, decode('UTF-8', $text);
    return map { "$file:" . ($_ + 1) } grep { length($lines[$_] =~ s/\s+$//r) > 120 } 0 .. $#lines;
}

sub lines_of { return scalar map { read_file($_) =~ /\n/g } @_ }
sub room { return $_[0] =~ m{/host/errors\.} ? 'errors' : $_[0] =~ m{^common/(\w+)/} ? $1 : $_[0] =~ m{^common/} ? 'headers' : $_[0] =~ m{^tests/} ? 'tests' : 'stage' }

# The files that a file includes, as [from, to].
sub includes_of {
    my ($file) = @_;
    my ($folder) = $file =~ m{(.*)/};
    return map { my $to = "$folder/$_"; 1 while $to =~ s{[^/.]+/\.\./}{}; [$file, $to] }
        read_file($file) =~ /^[ \t]*#[ \t]*include[ \t]*"([^"]+)"/mg;
}

# Whether there is an arrow from one file's room to the other's. A test may know all; a stage's folder is a room of its own, but
# where the gradients have one, NN_name_backward, they know that of NN_name.
sub is_arrow {
    my ($from, $to) = @_;
    my ($room, $other) = map { room($_) } $from, $to;
    return 1 if $room eq 'tests' || $other eq 'errors' || $room eq $other && ($room ne 'stage' || dirname($from) =~ /^\Q@{[dirname($to)]}\E(_backward)?$/);
    return scalar grep { $_ eq $other } @{$arrows{$room}};
}
sub dirname { return $_[0] =~ m{(.*)/} ? $1 : '.' }

sub wrong_includes { return map { "$_->[0] includes $_->[1]" } grep { !is_arrow(@$_) } @_ }

# The circles among [from, to], each once, by depth first search.
sub circles {
    my (%to, %state, @circles);
    push @{$to{$_->[0]}}, $_->[1] for @_;
    my $visit;
    $visit = sub {
        my (@path) = @_;
        my $at = $path[-1];
        return if ($state{$at} // '') eq 'done';
        if ($state{$at}) {
            push @circles, join ' -> ', @path;
            return;
        }
        $state{$at} = 'under way';
        $visit->(@path, $_) for @{$to{$at}};
        $state{$at} = 'done';
    };
    $visit->($_) for sort keys %to;
    return @circles;
}

# [file, file that defines it, symbol] for each symbol that an object file takes from one of another room.
sub calls_in {
    my ($objects) = @_;
    my (%defines, %takes, @calls);
    for (`find $objects/common $objects/[0-9]*_* -name '*.o' | xargs nm -A`) {
        my ($file, $kind, $symbol) = m{^\Q$objects\E/(.*)\.o:.* ([A-Za-z]) (\S+)$} or next;
        next if !-e $file; # another build's
        $kind eq 'U' ? push @{$takes{$symbol}}, $file : $kind =~ /[A-TV-Z]/ && push @{$defines{$symbol}}, $file;
    }
    for my $symbol (sort keys %takes) {
        next if @{$defines{$symbol} // []} != 1; # the system's, or an inline function's
        push @calls, [$_, $defines{$symbol}[0], $symbol] for @{$takes{$symbol}};
    }
    return @calls;
}

# A room of headers alone hands its arrows on: its functions are part of whoever includes them. One stage starts from another's
# kernel where the ladder says so.
sub wrong_calls {
    my %links = map { my ($stage, undef, $files) = split; map { ("$stage $_" => 1) } split /,/, $files }
        grep { /^\w/ } split /\n/, read_file('common/ladder.txt');
    return map { "$_->[0] takes $_->[2] from $_->[1]" } grep {
        my ($from, $to, $symbol) = @$_;
        my ($room, $other) = map { room($_) } $from, $to;
        !is_arrow($from, $to) && !$links{dirname($from) . " $to"} && !grep({ $_ eq "$room -> $other" } @{$seams{$symbol =~ s/^__tsan_\K.*//r} // []})
            && !($room eq 'stage' && grep { $_ eq $other } @{$arrows{gpu}})
    } @_;
}
