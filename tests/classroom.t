#!/usr/bin/env perl
# classroom.t - compare, sweep, diff, exercise and plots: the answers they give, and that nothing a student does breaks them.
#
#     TEST_BUILD=build/cpu prove tests/classroom.t
#     CLASSROOM=all prove tests/classroom.t          every fill-in exercise and every number of the notes: minutes
use strict;
use warnings;
use utf8;
use Cwd qw(getcwd);
use File::Temp qw(tempdir);
use Test::More;
use lib 'tests';
use Program qw(stages);

plan skip_all => 'the CPU device will do for scripts' if ($ENV{TEST_DEVICE} // 'cpu') ne 'cpu';
binmode(Test::More->builder->$_, ':utf8') for qw(output failure_output);
my $build = $ENV{TEST_BUILD} // 'build/cpu';
my $all = ($ENV{CLASSROOM} // '') eq 'all';
my $scratch = tempdir(CLEANUP => 1);
my $root = getcwd;
my @stages = stages();
my @few = map { "$build/$_/$_" } '00_naive', '01_tiled';

# Runs a command; its exit code, and what it said on stdout and stderr.
sub run {
    my (@command) = @_;
    my $line = join ' ', map { "'" . s/'/'\\''/gr . "'" } @command;
    my $out = `$line 2>'$scratch/err' </dev/null`;
    return {code => $? >> 8, out => $out, err => read_text("$scratch/err")};
}

# A stage that exists only here: speaks --help and --json, takes N^2 / 100 ms, and has no memory for more than 512 keys.
sub fake_stage {
    my ($name, $ending) = @_;
    mkdir "$scratch/$name";
    write_text("$scratch/$name/$name", <<"END");
#!/usr/bin/env perl
if ("\@ARGV" =~ /--help/) { print "variants\\n  slow           takes its time\\n  00_naive       x\\n"; exit 0 }
my (\$n) = "\@ARGV" =~ /--seqlen (\\d+)/;
my \$causal = "\@ARGV" =~ /--causal/ ? 'true' : 'false';
my \$note = \$n > 512 ? '"out of memory: needs 9.00 GiB"' : 'null';
my \$ms = \$n > 512 ? 'null' : \$n * \$n / 100;
$ending
print qq({"stage": "$name", "variant": "$name/slow", "direction": "forward", "batch": 1, "heads": 1, "kv_heads": 1, "seqlen_q": \$n, )
    . qq("seqlen_k": \$n, "head_dim": 64, "dtype": "fp16", "causal": \$causal, "latency_ms": \$ms, "min_ms": \$ms, "tflops": 1, "gbps": 1, )
    . qq("tensor_bytes": 1000, "workspace_bytes": \@{[6 * \$n * \$n]}, "worst_error": null, "allowed_error": null, "ok": \$ok, )
    . qq("device": "Fake", "clock_mhz": null, "cuda": null, "commit": "x", "note": \$note}\\n);
exit \$code;
END
    chmod 0755, "$scratch/$name/$name";
    return "$scratch/$name/$name";
}
my $large = fake_stage('08_large', 'my ($ok, $code) = ("null", $n > 512 ? 2 : 0);');
my $wrong = fake_stage('08_wrong', 'my ($ok, $code) = ("false", 1);');
my $crash = fake_stage('08_crash', 'print STDERR "08_crash: last words\n"; my ($ok, $code) = ("null", 0); kill 11, $$ if $n > 16;');

# ---- compare
my @tiny = qw(--heads 1 --seqlen 24 --head-dim 64 --iters 1);
my $run = run('perl', 'common/classroom/compare.pl', @few, '--', @tiny);
is($run->{code}, 0, 'compare: all agree') or diag($run->{out}, $run->{err});
utf8::decode($run->{out});
my @rows = $run->{out} =~ /^(0\S+) +forward .*×.* \/ /mg;
is("@rows", '00_naive 01_tiled/fma 01_tiled/mma', 'compare: a line a variant, 00_naive once');
like($run->{out}, qr/^problem  forward · batch 1 · heads 1\/1 · seqlen 24×24/m, 'compare: the problem');
like($run->{out}, qr/\nPASS  2 variants agree with 00_naive\n\z/, 'compare: the verdict');
is($run->{err}, '', 'compare: no progress where stderr is not a terminal');

$run = run('perl', 'common/classroom/compare.pl', $crash, $large, $few[0], '--', qw(--seqlen 1024 --batch 1 --heads 1 --iters 1 --lengths 1));
is($run->{code}, 1, 'compare: a crash is a failure');
like($run->{out}, qr/^08_crash +ended by signal 11: last words$/m, 'compare: which says how it ended');
like($run->{out}, qr/^08_large\/slow +forward +out of memory: needs 9.00 GiB$/m, 'compare: out of memory is a line');
like($run->{out}, qr/^00_naive +forward +[\d.]+ (us|ms|s) /m, 'compare: and the stages after them run');
$run = run('perl', 'common/classroom/compare.pl', $wrong, '--', '--seqlen', 16);
like($run->{out}, qr/\nFAIL  disagree: 08_wrong\/slow\n\z/, 'compare: who disagrees');
is($run->{code}, 1, 'compare: exit code 1 then');
$run = run('perl', 'common/classroom/compare.pl', @few, '--', '--seqlenn', 3);
is("$run->{code} $run->{out}$run->{err}", "2 compare.pl: --seqlenn: no such option, --help lists them\n", 'compare: a bad option is one line');
$run = run('perl', 'common/classroom/compare.pl', $few[0], '--', @tiny, '--', $few[1], '--', @tiny, '--seqlen', 16);
is(() = $run->{out} =~ /^problem /mg, 2, 'compare: a group of programs with options of its own') or diag($run->{out}, $run->{err});

# ---- sweep
my $csv = "$scratch/sweep.csv";
my @sweep = ('perl', 'common/classroom/sweep.pl', @few, '--', '--lengths', '16,32', '--out', $csv);
$run = run(@sweep);
is($run->{code}, 0, 'sweep runs') or diag($run->{out}, $run->{err});
my $whole = read_text($csv);
my ($heading, @lines) = split /\n/, $whole;
is(scalar @lines, 12, 'sweep: 3 variants, 2 lengths, 2 masks');
like($heading, qr/^stage,variant,.*,device,clock_mhz,cuda,commit,date,note$/, 'sweep: the columns');
run(@sweep);
is(read_text($csv), $whole, 'sweep: nothing is measured twice');
write_text($csv, substr($whole, 0, length($whole) - 30));
run(@sweep);
is(keys_of($csv), keys_of_text($whole), 'sweep: a line that was cut in writing is measured again');
is(join("\n", (split /\n/, read_text($csv))[0 .. 10]), join("\n", (split /\n/, $whole)[0 .. 10]), 'sweep: the lines before are kept');

unlink $csv;
my $child = fork() // die "fork: $!";
if (!$child) {
    open STDOUT, '>', '/dev/null';
    exec @sweep;
}
for (1 .. 500) {    # until some rows are there
    last if -e $csv && (() = read_text($csv) =~ /\n/g) > 3;
    select undef, undef, undef, 0.02;
}
kill 'INT', $child;
waitpid $child, 0;
my $some = () = read_text($csv) =~ /\n/g;
run(@sweep);
is(keys_of($csv), keys_of_text($whole), "sweep: interrupted after $some lines and started again");

unlink $csv;
my @doubling = ('--lengths', '64,128,256,512,1024,2048', '--masks', 'full');
$run = run('perl', 'common/classroom/sweep.pl', $large, '--', @doubling, '--limit', 3, '--out', $csv);
my %note = map { my @cell = split /,/, $_, -1; $cell[7] => $cell[22] } split /\n/, read_text($csv);
is($run->{code}, 0, 'sweep: a slow variant is no accident') or diag($run->{out}, $run->{err});
is($note{256}, '', 'sweep: what is fast is measured');
like($note{512}, qr/^skipped: about 2.62 s a launch/, 'sweep: what is predicted to be slow is not');
unlink $csv;
run('perl', 'common/classroom/sweep.pl', $large, '--', @doubling, '--limit', 1000, '--out', $csv);
%note = map { my @cell = split /,/, $_, -1; $cell[7] => $cell[22] } split /\n/, read_text($csv);
is($note{1024}, 'out of memory: needs 9.00 GiB', 'sweep: out of memory is a row');
ok(!exists $note{2048}, 'sweep: and beyond that nothing');
unlink $csv;
$run = run('perl', 'common/classroom/sweep.pl', $crash, $few[0], '--', '--lengths', '32', '--masks', 'full', '--out', $csv);
is($run->{code}, 1, 'sweep: a crash is an accident');
like($run->{out}, qr/^08_crash\/slow, seqlen 32: ended by signal 11: last words$/m, 'sweep: which it tells');
is(keys_of($csv), '00_naive 00_naive 32 false', 'sweep: and the others are measured');
for (['--lengths', '1,x', 'choose whole numbers with commas between, like 512,1024'],
     ['--masks', 'none', 'choose full, causal or full,causal'], ['--limit', 'x', 'choose seconds']) {
    my ($option, $value, $expected) = @$_;
    $run = run('perl', 'common/classroom/sweep.pl', $few[0], '--', $option, $value);
    is("$run->{code} $run->{err}", "2 sweep.pl: $option $value: $expected\n", "sweep: $option $value");
}
write_text($csv, "other,columns\n1,2\n");
$run = run(@sweep);
is("$run->{code} $run->{err}", "2 sweep.pl: $csv: has other columns than this sweep writes: move it away\n", "sweep: another's file");

# ---- diff
for (['03-04', '03_fa1/fa1.cu', '04_fa2/epilogue.cu'], ['04.2-04.3', '04_fa2/loop_swap.cu', '04_fa2/split_q.cu'],
     ['04.3-04.4', '04_fa2/split_q.cu', '04_fa2/tuned.cu']) {
    my ($asked, $from, $to) = @$_;
    $run = run('perl', 'common/classroom/diff.pl', $asked);
    like($run->{out}, qr/\A--- \Q$from\E\n\+\+\+ \Q$to\E\n.*\n\Q$from\E to \Q$to\E: \d+ lines go, \d+ come\n\z/s, "diff $asked");
}
is(run('perl', 'common/classroom/diff.pl', $_)->{code}, 2, "diff $_") for '3', '03-44', '04.1-04.7';

# ---- exercises, in a folder of their own: what a student has in exercises/ is not ours to touch
my ($commit) = map { m{commit-(.*)} } glob "$build/commit-*";
$ENV{COMMIT} = $commit if defined $commit;    # else the build would take this folder for another version
$ENV{OUT} = $build;
symlink "$root/$_", "$scratch/$_" for 'Makefile', 'common', 'tests', 'notes', 'build', @stages;
chdir $scratch or BAIL_OUT("$scratch: $!");
my @exercise = ('perl', 'common/classroom/exercise.pl');
my $list = run(@exercise)->{out};
my %of_stage;
push @{$of_stage{$1}}, "$1.$2" while $list =~ /^(\d\d)\.(\d+)  /mg;
for my $stage (@stages) {
    my ($number) = $stage =~ /^(\d\d)/;
    my @numbers = @{$of_stage{$number} // []};
    next if !@numbers && !-e "notes/exercises/$stage.pl"; # a new stage may still be without
    cmp_ok(scalar @numbers, '>=', 4, "$stage has at least three exercises and one to fill in") or next;
    $run = run(@exercise, $numbers[-1]);
    my ($file, $original) = $run->{out} =~ m{^\S+  (exercises/\S+) is (\S+) with \d+ lines missing}m;
    ok($file && read_text($file) =~ /YOUR LINES/, "the last one has its blank") or diag($run->{out}, $run->{err});
    next if !$file || !($all || $number eq '00');
    $run = run(@exercise, $numbers[-1]);
    is($run->{code}, 1, "$numbers[-1]: with the blank it fails");
    like($run->{out}, qr/^not yet: it fails for \S+ --variant 00_naive --batch \d/, 'and the first case is named') or diag($run->{out}, $run->{err});
    write_text($file, read_text($original));
    $run = run(@exercise, $numbers[-1]);
    is("$run->{code} $run->{out}", "0 right\n", "$numbers[-1]: with the original lines it is right") or diag($run->{err});
}
for (['02.1', '5.2427,5.9933', 0, 'right'], ['02.1', '5.2427, 5.2427', 1, 'not yet: number 2 is not 5.2427'],
     ['00.2', '0,0,0,1,2,3', 0, 'right'], ['0.2', '0,0,0,1,2,4', 1, 'not yet: number 6 is not 4']) {
    my ($number, $answer, $code, $says) = @$_;
    $run = run(@exercise, $number, '--', $answer);
    is("$run->{code} $run->{out}", "$code $says\n", "$number: $answer") or diag($run->{err});
}
for (['77.1', qr/^exercise.pl: N=77.1: there is no such exercise, choose from 00.1 /],
     ['02.1', qr/^exercise.pl: ANSWER=none: choose numbers/, 'none'], ['03.4', qr/^exercise.pl: N=03.4 needs a GPU/, '1,2']) {
    my ($number, $says, @answer) = @$_;
    $run = run(@exercise, $number, map { ('--', $_) } @answer);
    is($run->{code}, 2, "$number @answer: exit code 2");
    like($run->{err}, $says, 'and one line says why');
    is(() = $run->{err} =~ /\n/g, 1, 'one');
}
if ($all) {    # what the machine finds right stands in the notes' solutions
    for my $number (grep { !/03\.4/ } map { @$_ } values %of_stage) {
        my ($line) = $list =~ /^\Q$number\E  (.*)/m;
        next if $line =~ /^(fill in|change)/;
        $run = run(@exercise, '--solve', $number);
        my ($note) = glob 'notes/' . substr($number, 0, 2) . '_*.md';
        my ($solutions) = $note ? read_text($note) =~ /<summary>Solutions<\/summary>(.*)<\/details>/s : '';
        chomp $run->{out};
        my @digits = map { my $short = sprintf '%.3g', $_; /\./ ? qr/\Q$short\E/ : qr/\b\Q$_\E\b/ } split /,/, $run->{out};
        my @missing = grep { $solutions !~ $_ } @digits;
        ok($run->{code} == 0 && !@missing, "$number: $run->{out} stands in the note") or diag("missing: @missing $run->{err}");
    }
}
chdir $root;

# ---- pictures
SKIP: {
    mkdir "$scratch/without";
    write_text("$scratch/without/matplotlib.py", "raise ImportError('not here')\n");
    skip 'no python3 here', 1 if system('command -v python3 >/dev/null') != 0;
    $run = run('env', "PYTHONPATH=$scratch/without", 'python3', '-B', 'common/plots/plots.py');
    is("$run->{code} $run->{err}", "2 plots need matplotlib: pip install matplotlib\n", 'plots without matplotlib: one line');
    skip 'no matplotlib here', 3 if run('python3', '-c', 'import matplotlib')->{code};
    run('python3', '-B', 'common/plots/pictures.py', "$scratch/pictures$_") for 1, 2;
    my @pictures = map { s{.*/}{}r } sort glob "$scratch/pictures1/*.svg";
    is("@pictures", 'fragments.svg loop_orders.svg ring.svg roles.svg swizzle.svg warp_ownership.svg', 'the pictures are drawn');
    ok(!(grep { read_text("$scratch/pictures1/$_") ne read_text("$scratch/pictures2/$_") } @pictures), 'twice the same, byte for byte');
    $run = run('python3', '-B', 'common/plots/plots.py', '--out', "$scratch/pictures1");
    is($run->{code}, 0, 'plots of what was measured') or diag($run->{out}, $run->{err});
}
done_testing;

# "variant length mask" of each row of a sweep, in order
sub keys_of { return keys_of_text(read_text($_[0])) }
sub keys_of_text {
    my ($text) = @_;
    my (undef, @rows) = map { [split /,/] } split /\n/, $text;
    return join '; ', sort map { "$_->[0] $_->[1] $_->[7] $_->[10]" } @rows;
}
sub read_text { open my $in, '<:raw', $_[0] or die "$_[0]: $!"; local $/; return <$in> // '' }
sub write_text { open my $out, '>:raw', $_[0] or die "$_[0]: $!"; print $out $_[1]; close $out or die "$_[0]: $!" }
