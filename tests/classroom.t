#!/usr/bin/env perl
# classroom.t - compare, sweep, diff, exercise and bug: the answers they give, and that nothing a student does breaks them.
#
#     TEST_BUILD=build/cpu prove tests/classroom.t
#     TEST_ALL=1 prove tests/classroom.t             hands out, tries and solves every exercise, and plants bugs: minutes
use strict;
use warnings;
use utf8;
use Cwd qw(getcwd);
use File::Temp qw(tempdir);
use Test::More;
use lib 'tests';
use Program qw(stages new_stages kind_of in_read_only read_text write_text);

plan skip_all => 'the CPU device will do for scripts' if ($ENV{TEST_DEVICE} // 'cpu') ne 'cpu';
binmode(Test::More->builder->$_, ':utf8') for qw(output failure_output);
my $build = $ENV{TEST_BUILD} // 'build/cpu';
my $all = $ENV{TEST_ALL};
my $scratch = tempdir(CLEANUP => 1);
my $root = getcwd;
my @stages = stages();
my @few = map { "$build/$_/$_" } '00_naive', '01_tiled';
my @make = ('make', '--no-print-directory', "DEVICE=cpu");

# Runs a command; its exit code, and what it said on stdout and stderr.
sub run {
    my (@command) = @_;
    my $line = join ' ', map { "'" . s/'/'\\''/gr . "'" } @command;
    my $out = `$line 2>'$scratch/err' </dev/null`;
    return {code => $? >> 8, out => $out, err => read_text("$scratch/err")};
}
sub script { my ($name, @words) = @_; return run('sh', "common/classroom/$name.sh", @words) }
sub compare { # each [options, program...]
    my $rows = join ' ', map { my ($options, @programs) = @$_; map { "sh common/classroom/rows.sh $_ $options;" } @programs } @_;
    return run('sh', '-c', "{ $rows } | sh common/classroom/table.sh compare plot=$scratch/tables.tsv");
}

# A stage that exists only here: speaks --help, --csv and --json, takes N^2 / 100 ms, and has no memory for more than 512 keys.
sub fake_stage {
    my ($name, $ending, $cuda) = (@_, 'null');
    mkdir "$scratch/$name";
    write_text("$scratch/$name/$name", <<"END");
#!/usr/bin/env perl
if ("\@ARGV" =~ /--help/) { print "variants\\n  slow           takes its time\\n  00_naive       x\\n"; exit 0 }
my (\$n) = "\@ARGV" =~ /--seqlen (\\d+)/;
my \$causal = "\@ARGV" =~ /causal/ ? 'true' : 'false';
my \$note = \$n > 512 ? '"out of memory: needs 9.00 GiB, which is more"' : 'null';
my \$ms = \$n > 512 ? 'null' : \$n * \$n / 100;
$ending
my \@row = (stage => '"$name"', variant => '"$name/slow"', direction => '"forward"', batch => 1, heads => 1, kv_heads => 1, seqlen_q => \$n,
    seqlen_k => \$n, head_dim => 64, dtype => '"fp16"', causal => \$causal, settings => '""', latency_ms => \$ms, min_ms => \$ms, tflops => 1,
    percent_of_peak => 7, gbps => 1, tensor_bytes => 1000, workspace_bytes => 6 * \$n * \$n, gpu_bytes => 1048576, gpu_flops_per_byte => 3,
    worst_error => \$note =~ /not checked/ ? 1 : 'null', allowed_error => 'null', ok => \$ok, device => '"Fake"', clock_mhz => 'null', cuda => '$cuda', commit => '"x"',
    note => \$note);
my \@names = map { \$row[2 * \$_] } 0 .. \$#row / 2;
my \%value = \@row;
my \@values = map { s/null//r } \@value{\@names};
print "\@ARGV" =~ /--csv/ ? join(',', \@names) . "\\n" . join(',', map { s/^"([^,]*)"\$/\$1/r } \@values) . "\\n"
    : '{' . join(', ', map { qq("\$_": \$value{\$_}) } \@names) . "}\\n";
exit \$code;
END
    chmod 0755, "$scratch/$name/$name";
    return "$scratch/$name/$name";
}
my $large = fake_stage('08_large', 'my ($ok, $code) = ("null", $n > 512 ? 2 : 0);');
my $wrong = fake_stage('08_wrong', 'my ($ok, $code) = ("false", 1);');
my $crash = fake_stage('08_crash', 'print STDERR "08_crash: last words\n"; my ($ok, $code) = ("null", 0); kill 11, $$ if $n > 16;');

# ---- compare
my $tiny = '--heads 1 --seqlen 24 --head-dim 64 --iters 1';
my $run = compare([$tiny, @few]);
is("$run->{code} $run->{err}", '0 ', 'compare: all agree');
my @rows = $run->{out} =~ /^(0\S+) .* \/ /mg;
is("@rows", '00_naive 01_tiled/fma 01_tiled/mma', 'compare: a line a variant, 00_naive once');
like($run->{out}, qr/^times    are the simulator's.*\n\nproblem  forward, batch 1, heads 1\/1, seqlen 24x24, head_dim 64, fp16, full\n.*\n\nPASS  2 variants agree with 00_naive\n\z/ms,
    'compare: the problem, and the verdict');
unlike($run->{out}, qr/vs naive|TFLOP|fastest/, 'compare: on the CPU device no ratio of its times');
$run = run(@make, 'compare', 'COMPARE_OPTIONS=--seqlen 16 --iters 1', 'DECODE_OPTIONS=--seqlen-k 64 --iters 1');
like($run->{out}, qr/^problem  forward, batch 1, .* seqlen 16x16.*^06_fp8\/quantise\+wgmma .* seqlen 1x64,.*^07.*^PASS  /ms, 'make compare');
my %stages_in; # the rows of a table, without the names of variants
for my $table (split /\n\n(?=problem)/, $run->{out}) {
    my ($title) = $table =~ /^problem  (.*)/m or next;
    $stages_in{$title =~ s/, batch 1, heads [^,]+|, head_dim 64, fp16|, full//gr} = join ' ', map { s{/.*}{}r } $table =~ /^(\d\S*)(?: |$)/mg; # a long name has a line of its own
}
my @forward = grep { kind_of($_) eq 'FORWARD' && !/^10/ } @stages;
my %want = ('forward, seqlen 16x16' => join(' ', map { ($_) x variants_of($_) } @forward),
    'backward, seqlen 16x16' => join(' ', '00_naive', map { ($_) x variants_of($_) } grep { kind_of($_) eq 'BACKWARD' } @stages),
    'forward, seqlen 16x16, blocks window:256' => join(' ', '00_naive', map { ($_) x variants_of($_) } grep { /^10/ } @stages),
    'forward, seqlen 1x64' => join(' ', '00_naive', map { ($_) x variants_of($_) } grep { kind_of($_) eq 'DECODING' } @stages));
is_deeply(\%stages_in, \%want, 'compare: a table per problem and direction, with the stages in the order of the ladder, and 00_naive once');
is_deeply([grep { length > 120 } split /\n/, $run->{out} . script('exercise')->{out}], [], 'compare and exercise: lines of at most 120 characters');

# Q, O and LSE once, K and V for each of two tiles of 64 queries. 4 * 128 * 128 * 64 FLOPs
like(compare(['--heads 1 --seqlen 128 --head-dim 64 --iters 1 --no-validate', "$build/04_fa2/04_fa2"])->{out},
    qr/^04_fa2\/split_q +96.5 KiB +1.50x +42.4 +\S+ [mu]?s +64.5 KiB \+ 0 .*^not validated$/ms, 'compare: bytes moved and FLOPs for each');
my $gpu = fake_stage('08_gpu', 'my ($ok, $code) = ("null", 0);', '"13.0"');
like(compare(['--seqlen 16', $gpu])->{out}, qr/^variant +latency +of fastest +vs naive +TFLOP\/s +of peak +tensors \+ workspace .*\n08_gpu\/slow +2.56 ms +100% +- +1.00 +7.00% /m,
    'compare: on a GPU speeds');
my $other = fake_stage('08_twice', 'my ($ok, $code) = ("null", 0); $ms *= 4;', '"13.0"');
like(compare(['--seqlen 16', $gpu, $other])->{out}, qr/^08_gpu\/slow +2.56 ms +100% .*\n08_twice\/slow +10.2 ms +25.0% /m, '... beside the fastest');
is(read_text("$scratch/tables.tsv") =~ s/^.*?\n//r, join('', map { "forward, batch 1, heads 1/1, seqlen 16x16, head_dim 64, fp16, full\tFake\t$_ of the fastest\n" }
    "08_gpu/slow\tlatency, ms\t2.56\t2.56 ms\t100%", "08_twice/slow\tlatency, ms\t10.24\t10.2 ms\t25.0%"), '... and the same for a picture');

$run = compare(['--seqlen 1024 --batch 1 --heads 1 --iters 1 --lengths 1', $crash, $large, $large, $few[0]]);
is($run->{code}, 1, 'compare: a crash is a failure');
like($run->{out}, qr/^08_crash +ended by signal 11: last words$/m, 'compare: which says how it ended');
is(() = $run->{out} =~ /^08_large\/slow +out of memory: needs 9.00 GiB, which is more$/mg, 1, 'compare: out of memory is a line, once');
like($run->{out}, qr/^00_naive .* [\d.]+ (us|ms|s) /m, 'compare: and the stages after them run');
$run = compare(['', fake_stage('08_outside', 'print STDERR "kernel f, block (0,0,0), thread 0: gone\n"; my ($ok, $code) = ("true", 2);')]);
like($run->{out}, qr/^08_outside +exit code 2: kernel f, .*: gone\n\nFAIL  broken: 08_outside\n\z/ms, 'compare: a kernel that ends the program is a failure');
$run = compare(['--seqlen 16', $wrong]);
like("$run->{code} $run->{out}", qr/^1 .*\nFAIL  disagree: 08_wrong\/slow\n\z/s, 'compare: who disagrees');
my $partly = fake_stage('08_partly', 'my ($ok, $code) = ("true", 0); $note = q{"not checked: rounding alone may change dQ by 1, and it is at most 0; dK by 2, and it is at most 0"};');
$run = compare(['--seqlen 16', $partly]);
like("$run->{code} $run->{out}", qr/^0 .*^08_partly\/slow .*2.56 ms .*\n\nPASS  1 variant agrees with 00_naive; not checked: dQ, dK\n\z/ms, 'compare: tensors that are not checked do not decide, and are named');
$run = compare(['--scale 1e5 --seqlen 16 --iters 1', $few[1]]);
like("$run->{code} $run->{out}", qr/^0 .*\nPASS  2 variants agree with 00_naive; not checked: O\n\z/s, 'compare: O is not, and LSE decides');
$run = compare(['--seqlen 16', fake_stage('08_nothing', 'my ($ok, $code) = ("null", 2); $note = q{"not checked: rounding alone may change O by 1, and it is at most 1"};')]);
like("$run->{code} $run->{out}", qr/^2 .* not checked\n.*\nNOT CHECKED  08_nothing\/slow\n\z/s, 'compare: what cannot be checked');
$run = compare(['', fake_stage('08_none', 'print STDERR "08_none: needs a GPU\n"; exit 2; my ($ok, $code);')]);
like("$run->{code} $run->{out}", qr/^2 \n08_none +not run: needs a GPU\n\nNOT RUN  /, 'compare: nothing can run');
$run = compare(['--seqlenn 3', @few]);
is("$run->{code} $run->{out}$run->{err}", "2 compare: --seqlenn: no such option; --help lists them\n", 'compare: a bad option is one line');
$run = compare(["$tiny --mask full,causal", @few], ["$tiny --seqlen 16", $few[1]]);
is(join(', ', $run->{out} =~ /^problem .*seqlen (\d+)x.* (\w+)$/mg), '24, full, 24, causal, 16, full',
    'compare: a table for each length and mask') or diag($run->{out});
$run = compare(["$tiny --blocks window:3", @few, "$build/10_block_sparse/10_block_sparse"]);
like("$run->{code} $run->{out}", qr/^0 .*^problem .* full, blocks window:3\n.*^00_naive .*^10_block_sparse\/lists\+skipping .*
\nleft out, because they do not take --blocks: 00_naive, 01_tiled\n\nPASS  3 variants /ms, 'compare: stages without the option are left out, and a line says so');
$run = compare(["$tiny --variant mma,fma", @few]);
is("$run->{code} $run->{out}$run->{err}", "2 compare: --variant mma,fma: choose 00_naive\n", 'compare: a value that no stage takes is a mistake');
$run = compare(["$tiny --formatt e5m2", @few, "$build/06_fp8/06_fp8"], [$tiny, $few[1]]);
is("$run->{code} $run->{out}$run->{err}", "2 compare: --formatt: no such option; --help lists them\n", '... an option that none has, too, whatever else ran');
like(compare(["$tiny --format e4m3,e5m2 --variant mma", "$build/06_fp8/06_fp8"])->{out}, qr/^06_fp8\/quantise\+mma format=$_;.*\n .* \/ /m,
    "compare: 06 in two formats: $_") for 'e4m3', 'e5m2';

# ---- sweep
my $csv = "$scratch/sweep.csv";
sub sweep {
    my ($variables, @programs) = @_;
    return run('env', "RESULTS=$scratch", @$variables, 'sh', 'common/classroom/sweep.sh', @programs);
}
$run = sweep(['LENGTHS=16,32'], @few);
is($run->{code}, 0, 'sweep runs') or diag($run->{out}, $run->{err});
my $whole = read_text($csv);
my ($heading, @lines) = split /\n/, $whole;
is(scalar @lines, 12, 'sweep: 3 variants, 2 lengths, 2 masks');
is($heading, 'date,' . (split /\n/, `$few[1] --csv --seqlen 8 --iters 1`)[0], 'sweep: the columns of every program, and the date before them');
like($lines[0], qr/^20\d\d-\d\d-\d\d,00_naive,00_naive,forward,1,1,1,16,16,64,fp16,false,/, 'sweep: a row');
sweep(['LENGTHS=16,32'], @few);
is(read_text($csv), $whole, 'sweep: nothing is measured twice');
write_text($csv, substr($whole, 0, length($whole) - 30));
sweep(['LENGTHS=16,32'], @few);
is(keys_of($csv), keys_of_text($whole), 'sweep: a line that was cut in writing is measured again');
is(join("\n", (split /\n/, read_text($csv))[0 .. 10]), join("\n", (split /\n/, $whole)[0 .. 10]), 'sweep: the lines before are kept');

unlink $csv;
my @doubling = ('LENGTHS=64,128,256,512,1024,2048', 'MASKS=full');
my %note = notes_of(sweep([@doubling, 'LIMIT=500'], $large));
is(join(' ', sort { $a <=> $b } keys %note), '64 128 256', 'sweep: after what takes too long nothing longer');
unlink $csv;
%note = notes_of(sweep([@doubling, 'LIMIT=1000000'], $large));
is($note{1024}, '"out of memory: needs 9.00 GiB, which is more"', 'sweep: out of memory is a row');
ok(exists $note{512} && !exists $note{2048}, 'sweep: and beyond that nothing');
unlink $csv;
$run = sweep(['LENGTHS=32', 'MASKS=full'], $large, $crash, $few[0]);
is($run->{code}, 1, 'sweep: a crash is an accident');
like($run->{out}, qr/^08_crash\/slow .*: exit code 139: 08_crash: last words$/m, 'sweep: which it tells');
is(keys_of($csv), '00_naive 00_naive 32 false; 08_large 08_large/slow 32 false', 'sweep: and the others are measured');
unlink $csv;
sweep(['LENGTHS=8'], "$build/07_flash_decoding/07_flash_decoding");
is(() = read_text($csv) =~ /,forward,1,8,2,1,128,64,fp16,false,/g, () = read_text($csv) =~ /^[^,]*,07/mg, 'sweep: a decoding stage has its own problem');
unlink $csv;
sweep(['LENGTHS=8', 'MASKS=full'], "$build/10_block_sparse/10_block_sparse");
is(() = read_text($csv) =~ /,blocks=all,/g, () = read_text($csv) =~ /^[^,]*,10/mg, 'sweep: 10 with the problem of the other stages');
unlink $csv;
write_text($csv, "other,columns\n1,2\n");
for ([[], qr/^sweep: \Q$csv\E has columns that .* RESULTS$/], [['LENGTHS=1,x'], qr/^sweep: LENGTHS=1,x: choose whole numbers/],
     [["RESULTS=$scratch/new", 'MASKS=none'], qr/^sweep: 00_naive: --mask none: choose full\|causal$/]) {
    my ($variables, $says) = @$_;
    $run = sweep($variables, $few[0]);
    is($run->{code}, 2, "sweep @$variables: exit code 2");
    like($run->{err}, $says, 'and one line says why');
}

# ---- diff, on a ladder of its own: what counts is known here
mkdir "$scratch/diff";
mkdir "$scratch/diff/$_" for 'common', '00_zero', '01_one', '02_two';
symlink "$root/common/classroom", "$scratch/diff/common/classroom";
write_text("$scratch/diff/common/ladder.txt", "# a comment\n00_zero - -\n01_one 00_zero -\n02_two 01_one/first,first:00_zero -\n");
write_text("$scratch/diff/00_zero/main.c", '.name = "00_zero",');
write_text("$scratch/diff/00_zero/zero.cu", "/* a head\n * of two lines */\n#include \"a/*b\"\nint a;\nint b; // tail\n\nint c;\n");
write_text("$scratch/diff/01_one/main.c", qq(.name = "01_one", .settings = {{.name = "first"}},\n.variants = {\n{.name = "first"},\n    {.name = "second", .idea = "x"},\n}));
write_text("$scratch/diff/01_one/first.cu", "/* another head */\n#include \"a/*b\"\nint a; /* says more,\n in\n three lines */\n    int b;\nint d; int e;\n");
write_text("$scratch/diff/01_one/second.cu", "int a;\nint b;\nint d; /* x */ int e;\nchar q = '\"'; // int c;\nchar *s = \"// not a comment \\\" /*\";\n");
write_text("$scratch/diff/02_two/main.c", qq(.variants = {{.name = "first"},\n{.name = "narrow"},\n{.name = "wide"}}));
write_text("$scratch/diff/02_two/first.cu", "int a;\nint b;\nint c;\n");
write_text("$scratch/diff/02_two/$_->[0].cu", "/* a head */\n#include \"rows.cuh\"\nint rows = $_->[1];\n") for ['narrow', 1], ['wide', 2];
write_text("$scratch/diff/02_two/rows.cuh", "/* its head */\n#ifndef FA_ROWS\n#define FA_ROWS\n__global__ void kernel();\nint c;\nint d;\n\n#endif\n");
chdir "$scratch/diff";
for (['01', '00_zero/zero.cu', '01_one/first.cu', '1 lines of code go, 1 come'],    # int c; to int d; int e;
     ['02', '00_zero/zero.cu', '02_two/first.cu', '1 lines of code go, 0 come'],    # the include
     ['01_one.first-second', '01_one/first.cu', '01_one/second.cu', '1 lines of code go, 2 come'],
     ['01-02', '01_one/second.cu', '02_two/first.cu', '3 lines of code go, 1 come'],
     ['narrow-wide', '02_two/narrow.cu', '02_two/wide.cu', '1 lines of code go, 1 come'],
     ['02_two.first-narrow', '02_two/first.cu', '02_two/narrow.cu', '2 lines of code go, 3 come']) {    # with the kernel of rows.cuh
    my ($asked, $from, $to, $count) = @$_;
    $run = script('diff', $asked);
    like($run->{out}, qr/^--- a\/\Q$from\E\n\+\+\+ b\/\Q$to\E\n.*\n\Q$from to $to: $count\E\n\z/ms, "diff $asked") or diag($run->{err});
    unlike($run->{out}, qr/head/, "diff $asked: without the heads");
}
mkdir "$scratch/bin";
symlink((map { -e "/usr/bin/$_" ? "/usr/bin/$_" : "/bin/$_" } $_)[0], "$scratch/bin/$_") for qw(sh awk sed grep diff cut ls mktemp mkdir rm xargs);
$run = run('env', "PATH=$scratch/bin", 'sh', 'common/classroom/diff.sh', '01');
like($run->{out}, qr/^\+int d; int e;\n.*: 1 lines of code go, 1 come\n\z/ms, 'diff without git') or diag($run->{err});
for (['second', 'second: choose a stage, like 04, or two kernels'], ['00', '00 builds on no other stage'], ['01-44', '44: choose from 00 01 02'],
     ['second-first', 'first: choose from 01_one.first 02_two.first'], ['sceond-zero', 'sceond: choose from 01_one.second']) {
    $run = script('diff', $_->[0]);
    like("$run->{code} $run->{out}$run->{err}", qr/^2 diff: \Q$_->[1]\E.*\n\z/, "diff '$_->[0]'");
}
write_text("$scratch/diff/common/ladder.txt", read_text("$scratch/diff/common/ladder.txt") . "01_one_more 00_zero -\n");
mkdir "$scratch/diff/01_one_more";
write_text("$scratch/diff/01_one_more/main.c", '.variants = {{.name = "third"}}');
write_text("$scratch/diff/01_one_more/third.cu", "int a;\n");
like(script('diff', '01')->{out}, qr/zero.cu to 01_one\/first.cu: .*zero.cu to 01_one_more\/third.cu: /s, 'diff 01: both stages of the number');
like(script('diff', '01-02')->{out}, qr/01_one\/second.cu to 02_two\/first.cu: /, 'diff 01-02: the first of them');
like(script('diff', '02')->{out}, qr/\A.*01_one\/first.cu to .*zero.cu to /s, 'diff 02: with both kernels that it builds on');
chdir $root;
for my $stage (grep { !/^00/ } @stages) {
    my ($number) = $stage =~ /^(\d\d)/; # two stages may share one
    like(script('diff', $_)->{out}, qr/\.cu to \Q$stage\E\/\w+\.cu: \d+ lines of code go, [1-9]\d* come$/m, "diff $_: $stage") for $number, $stage;
}

# ---- exercises, in a folder of their own: what a student has in exercises/ is not ours to touch
my ($commit) = map { m{commit-(.*)} } glob "$build/commit-*";
$ENV{COMMIT} = $commit if defined $commit;    # else the build would take this folder for another version
$ENV{OUT} = $build;
$ENV{DEVICE} = 'cpu';
symlink "$root/$_", "$scratch/$_" for 'Makefile', 'common', 'tests', 'notes', 'build', @stages;
chdir $scratch or BAIL_OUT("$scratch: $!");
my $list = script('exercise')->{out};
my %of_stage;
push @{$of_stage{$1}}, "$1.$2" while $list =~ /^(\d\d)\.(\d+)  /mg;
for my $stage (@stages) {
    my ($number) = $stage =~ /^(\d\d)/;
    next if grep { $_ eq $stage } new_stages(); # it may still be without
    my @numbers = @{$of_stage{$number} // []};
    cmp_ok(scalar @numbers, '>=', 4, "$stage has at least three exercises and one to fill in") or next;
    like($list, qr/^\Q$numbers[-1]\E  fill in /m, 'which is the last one');
}
# Every file that can be handed out is.
for my $exercise (grep { $all || /^00/ } $list =~ /^([a-z0-9_]+\.\d+)  (?:fill in|change|write)\b/mg) {
    my ($does) = $list =~ /^\Q$exercise\E  (fill in|change|write)/m;
    $run = script('exercise', $exercise);
    my ($file, $original) = $run->{out} =~ m{\b(exercises/\S+) (?:is (?:a copy of )?(?:(\S+) with \d+ lines missing|\S+ to work on)|compiles, but its)};
    ok($run->{code} == 0 && $file && -s $file, "$exercise is handed out") or diag($run->{out}, $run->{err}), next;
    unlink($file), next if $does ne 'fill in';
    like(read_text($file), qr/YOUR LINES/, "$exercise: with its blank");
    is(open_braces($file), open_braces($original), 'and no brace of it is left');
    next if !$all;
    $run = script('exercise', $exercise);
    is($run->{code}, 1, "$exercise: with the blank it fails");
    like($run->{out}, qr/^not yet: .*wrong for |^not yet: small problems are right|^not yet: it does not compile/, 'and it says for what')
        or diag($run->{out}, $run->{err});
    shows_it_again($run->{out}) if $run->{out} =~ /See it again/;
    write_text($file, read_text($original));
    $run = script('exercise', $exercise);
    like("$run->{code} $run->{out}", qr/^0 right\n  Because: .*The\s+solution\s+of\s+\Q$exercise\E/s, "$exercise: with the original lines it is right") or diag($run->{err});
}
# A wrong row's sum: the simplest problem, which tensor, and where.
my $naive = read_text('00_naive/naive.cu');
if ($all) {
    write_text('exercises/00.4/naive.cu', $naive =~ s/l \+= \K[^;]*/1 - l/r);
    $run = script('exercise', '00.4');
    like("$run->{code} $run->{out}", qr/^1 not yet: right for one query and one key, wrong for one query and two keys\.
    O\[batch 0, head 0, row 0, column \d+\] = .* want .*
    LSE\[batch 0, head 0, row 0\] = .* want .*
  See it again: (\S+) --batch 1 --heads 1 .* --seqlen 1 --seqlen-k 2\n  Hint: .*\n  Another hint: make exercise N=00\.4 HINT=2\n\z/, '00.4 with a wrong sum') or diag($run->{err});
    shows_it_again($run->{out});
    write_text('exercises/00.4/naive.cu', $naive =~ s/(t\.lse\[flat_row\] = )shift \+ /$1/r);
    like(script('exercise', '00.4')->{out}, qr/^not yet: wrong for one query and one key\.\n    LSE\[.*\n    O is right\.\n/, '00.4: O is right, LSE is not');
    write_text('exercises/00.4/naive.cu', $naive =~ s/column < visible_keys\(/column + 400 < 400 + visible_keys(/r =~ s/p\.scale \* dot/p.seqlen_k > 400 ? 0 : $&/r);
    $run = script('exercise', '00.4');
    like($run->{out}, qr/^not yet: small problems are right, the grid sees.*See it again: \S+00_naive --variant 00_naive .*--seqlen-k 509/s, '00.4: what only the grid sees');
    shows_it_again($run->{out});
    write_text('exercises/00.4/naive.cu', $naive =~ s/l \+= \K[^;]*/$& * (shift < -100 ? 0 : 1)/r);
    $run = script('exercise', '00.4');
    like($run->{out}, qr/^not yet: small problems are right, the grid sees.*but with very negative inputs.*See it again: \S+grid_00_naive --quick/s, '00.4: what no options of the program show');
    shows_it_again($run->{out});
    write_text('exercises/00.4/naive.cu', "no C\n");
    like(script('exercise', '00.4')->{out}, qr/^not yet: it does not compile: exercises\/00\.4\/naive\.cu:1:/, '00.4: the error names the student\'s file');
}

for (grep { $all || $_->[0] ne '01.3' } ['02.1', '5.2427,5.9933', 0, "right\n"], ['02.1', '5.2427, 5.2427', 1, "not yet: number 2, 5.2427, is too low. Up to 0.01 % off would do.\n  Hint: "],
     ['02.1', '5.2427', 2, ''], ['01.3', '81.3%', 0, 'right'], ['02.1', '5.25, 5.9933', 1, 'not yet: number 1, 5.25, is too high.'],
     ['00.2', '0,0,0,1,2,3', 0, 'right'], ['0.2', '0,0,0,1,2,4', 1, "not yet: number 6, 4, is too high. The exact number is wanted.\n"]) {
    my ($number, $answer, $code, $says) = @$_;
    $run = script('exercise', $number, $answer);
    like("$run->{code} $run->{out}", qr/^$code \Q$says\E/, "$number: $answer") or diag($run->{err});
}
# How many answers are wanted, and how near, is said with the question.
like(script('exercise', '02.1')->{out}, qr/ ANSWER=p,q or HINT=1\. An answer within 0\.01 % is accepted\.\n\z/, '02.1: two, not exact');
like(script('exercise', '03.1')->{out}, qr/ ANSWER=\.\.\. or HINT=1\.\n\z/, '03.1: one');
# make fails after a wrong answer, and adds one line, which has exercise.sh's exit code: 1, or 2 where nothing could be checked.
$ENV{HINT} = '';
$run = run(@make, 'exercise', 'N=00.2', 'ANSWER=0,0,0,1,2,4');
like("$run->{code} $run->{out}$run->{err}", qr/^2 not yet.*\n.*make: \*\*\* \[.*exercise\] Error 1\n\z/s, 'make exercise with a wrong answer: an error');
like(run(@make, 'exercise', 'N=00.2', 'ANSWER=none')->{err}, qr/make: .* Error 2\n\z/, 'make exercise with no answer: another');
is(run(@make, 'exercise', 'N=00.2', 'ANSWER=1,536,5')->{code}, 2, 'a wrong count: an error');
is(run(@make, 'exercise', 'N=00.2')->{code}, 0, 'a question: none');
for (['77.1', qr/no such exercise/], ['02.1', qr/ANSWER=none: choose numbers/, 'none'], ['03.4', qr/N=03.4 needs a GPU/, '1,2']) {
    my ($number, $says, @answer) = @$_;
    $run = script('exercise', $number, @answer);
    like("$run->{code} $run->{err}", qr/^2 exercise: .*$says.*\n\z/, "$number @answer: cannot be checked, and one line says why");
}
# ---- exercises and a stage that are made up: what is right is known here, and `make` hands out a program that agrees but takes no
# problem of 64 queries
my $own_tree = "$scratch/own";
system("mkdir -p '$own_tree/common' && cd '$own_tree' && mkdir -p 00_naive tests notes/exercises && cp -r '$root/common/classroom' common") == 0 or BAIL_OUT("$own_tree: $!");
write_text("$own_tree/$_", "int a;\nint b;\nint c;\n") for 'Makefile', '00_naive/naive.cu', 'tests/x.c', 'notes/exercises/x.c';
write_text("$own_tree/tests/mutations_kernels.txt", "00_naive - 00_naive/naive.cu: no c\n- int c;\n+ ;\n");
write_text("$own_tree/program", "#!/bin/sh\ncase \"\$*\" in *--seqlen?64*) echo '00_naive: takes no 64' >&2; exit 2; esac\n");
write_text("$own_tree/make", "#!/bin/sh\nfor to; do case \$to in build/*) mkdir -p \"\$(dirname \$to)\" && cp '$own_tree/program' \$to; esac; done\n");
chmod 0755, $scratch, "$own_tree/make", "$own_tree/program";
write_text("$own_tree/notes/exercises/00_naive.txt", <<'END');
exercise 00.1
ask one number
hint the only one
answer 52224
exercise 00.2
ask two numbers
hint is it?
hint it is
answer 1536
answer 5
exercise 00.3
ask a change
hint it is gone
change 00_naive/naive.cu: b goes
after int a;
gone int b;
answer 1
exercise 00.5
ask two thirds
answer 1 / 3
answer -200000 / 3
exercise 00.4
ask the first two lines
blank 00_naive/naive.cu
from int a;
to int b;
END
chdir $own_tree;
$ENV{MAKE} = "$own_tree/make";
for (['00.1', '52,224', 0, "right\n  Because: the only one. The solution of 00.1, for comparison: notes/00_naive.md\n"], ['00.1', '7', 1, "not yet: 7 is too low. The exact number is wanted.\n  Hint: the only one.\n"],
     ['00.2', '1536,5', 0, "right\n  Because: it is. The solution of 00.2, for comparison: notes/00_naive.md\n"],
     ['00.2', '1,536,5', 0, "right\n  Because: it is. The solution of 00.2, for comparison: notes/00_naive.md\n"], ['00.2', '1,536, 6', 1, "not yet: number 2, 6, is too high. The exact number is wanted.\n  Hint: is it?\n  Another hint: make exercise N=00.2 HINT=2\n"],
     ['00.5', '0.333,-6.67e4', 0, "right\n  The solution of 00.5, for comparison: notes/00_naive.md\n"],
     ['00.5', '0.334,-6.67e4', 1, "not yet: number 1, 0.334, is too high. Three digits will do.\n"],
     ['00.1', '52,22', 2, "exercise: ANSWER has 2 numbers and not 1: one number\n"],
     ['', '5', 2, "exercise: ANSWER=5: choose the exercise too, like N=04.1 (make exercise lists them)\n"]) {
    my ($number, $answer, $code, $says) = @$_;
    $run = script('exercise', $number, $answer);
    is("$run->{code} $run->{out}$run->{err}", "$code $says", "'$number': $answer");
}
script('exercise', '00.3');
for (["int a;\nint b;\n", 'nothing is changed'], ["int c;\n", 'what was to stay is gone, too'], ["int a;\nint c;\n", 'changed']) {
    my ($text, $name) = @$_;
    write_text('exercises/00.3/naive.cu', $text);
    is(script('exercise', '00.3', 1)->{out}, $name eq 'changed' ? "right\n  Because: it is gone. The solution of 00.3, for comparison: notes/00_naive.md\n" : "not yet: this change is still missing in exercises/00.3/naive.cu: b goes\n", "a change: $name");
}
# The tree cannot be written to: all is under OUT, or beside it.
mkdir "$scratch/elsewhere";
chmod 0777, "$scratch/elsewhere";
my $elsewhere = "TMPDIR=$scratch/elsewhere MAKE=$own_tree/make OUT=$scratch/elsewhere/out";
for (['exercise.sh 00.4', 0, "00.4\\s+$scratch/elsewhere/out/exercises/00.4/naive.cu\\s.*missing,.*"],
     ['exercise.sh 00.4', 0, 'right\n .*'], ['exercise.sh 00.3', 0, ".*$scratch/elsewhere/out/exercises/00.3/naive.cu\\s.*a\\s+copy.*"],
     ['bug.sh 00.1', 1, '00.1  00_naive/naive.cu: no c\n@@ -3 \+3 @@\n-int c;\n\+;\n.*No check catches it.']) {
    my ($line, $code, $says) = @$_;
    my ($said, $ends) = in_read_only($own_tree, "$elsewhere sh common/classroom/$line");
    like("$ends $said", qr/\A$code $says\n\z/s, "$line in a tree that cannot be written to, with OUT");
}
delete $ENV{MAKE};
chdir $scratch;

# ---- rows: a quote inside a string does not end it
write_text('rows', '{"note": "a \\"b\\", c: \\\\", "bytes": 7}' . "\n");
write_text('script', 'END { print cell[1, "note"] "|" cell[1, "bytes"] }');
is(`awk -f common/classroom/rows.awk -f script rows`, 'a "b", c: \\\\|7' . "\n", 'rows.awk: strings with quotes');

# ---- what helps: two hints an exercise, and known parts of the number
for my $file (glob 'notes/exercises/*.txt') {
    my @without = grep { (() = /^hint /mg) != 2 } split /\n(?=exercise )/, read_text($file) =~ s/^#.*\n//mgr;
    ok(!@without, "$file: every exercise has two hints") or diag(@without);
}
{
    local $ENV{HINT} = 1;
    my $first = script('exercise', 'counting.2')->{out};
    local $ENV{HINT} = 2;
    my $both = script('exercise', 'counting.2')->{out};
    like($both, qr/^\Q$first\E.+\n\z/, 'the second hint comes with the first');
    is(() = $first =~ /\n/g, 1, 'and the first alone');
    local $ENV{HINT} = 3;
    $run = script('exercise', 'counting.2');
    is("$run->{code} $run->{err}", "2 exercise: HINT=3: choose 1 or 2\n", 'there is no third');
}
for (['counting.1', '67.1, 31, 4', "not yet: number 1, 67.1, is too low. Up to 2 % off would do.\n  67.1 is K alone, or V alone.\n  Hint: "],
     ['counting.2', '388', "right\n"], ['fragments.1', '10,3,10,1,21,1', "right\n"], ['floating_point.3', 'a,d', "not yet: number 1 is not a.\n"],
     ['floating_point.1', '3.9e-4', "right\n"], ['timing.2', '4096,256,16', "not yet: number 3, 16, is too high. Up to 1 % off would do.\n  16 is what was claimed.\n"]) {
    my ($number, $answer, $says) = @$_;
    like(script('exercise', $number, $answer)->{out}, qr/^\Q$says\E/, "$number: $answer");
}

# ---- a kernel to write: the score, yours beside the wanted
if ($all) {
    $run = script('exercise', 'banks_and_swizzles.4');
    my ($own) = $run->{out} =~ m{^(exercises/\S+) compiles, but its}m;
    my $start = read_text($own // 'notes/exercises/transpose.cu');
    my $turned = <<'END';
    for (int r = warp; r < TILE; r += WARPS)
        if (first_row + r < rows && first_column + lane < columns)
            shared.tile[r][lane] = from[(first_row + r) * columns + first_column + lane];
    __syncthreads();
    for (int c = warp; c < TILE; c += WARPS)
        if (first_row + lane < rows && first_column + c < columns)
            to[(first_column + c) * rows + first_row + lane] = shared.tile[lane][c];
}
END
    my $tiled = $start =~ s/    for \(int r = warp.*?\n\}\n/$turned/sr;
    my $padded = $tiled =~ s/tile\[TILE\]\[TILE\]/tile[TILE][TILE + 1]/r;
    for ([$start, 1, 'not yet: wrong elements\.\n    to\[column 0\]\[row 1\] = 1, want 328', 'the start'],
         [$start =~ s/to\[row \* columns \+ column\]/to[column * rows + row]/r, 1, 'bytes of device memory +2\.362 MB +0\.577 MB\n.*not yet: bytes of device memory', 'no tile'],
         [$tiled, 1, 'wavefronts lost to bank conflicts +63304 +0\n.*not yet: wavefronts lost', 'no pitch'],
         [$padded =~ s/    __syncthreads\(\);\n//r, 1, 'races +2 +0\n.*not yet: wrong elements', 'no barrier'],
         [$padded =~ s/__syncthreads\(\);/if (warp)\n$&\nelse\n$&/r, 1, 'not yet: the device stopped it:\n.*no thread can continue', 'a barrier that a warp skips'],
         [$padded, 0, 'right\n  Because: ', 'a right one']) {
        my ($kernel, $code, $says, $name) = @$_;
        write_text($own, $kernel);
        $run = script('exercise', 'banks_and_swizzles.4');
        like("$run->{code} $run->{out}", qr/^$code .*$says/s, "a kernel to write: $name") or diag($run->{err});
    }
}

# ---- exercises with a line to change: what the student would write, in the copy
my %changes = (
    '01.2' => sub { s/PITCH = SLICE \+ 1/PITCH = SLICE/ }, '03.2' => sub { s/constexpr int Br = \K32/16/ },
    '08.3' => sub { s/STAGES = \K[^;]*;/1;/ },
    'banks_and_swizzles.2' => sub { s/\(row >> 1\) & 3/row & 3/ }, 'trace.2' => sub { s/(swizzle_key\(int row\) \{ return )[^;]*/${1}0/ },
    'trace.3' => sub { s/__syncthreads\(\); \/\* and is done with/\/* and is done with/ },
    'trace.4' => sub { s/mma_output\(.*?\Kcp_async_wait<0>\(\);//s },
    'trace.5' => sub { s/__syncthreads\(\); \/\* and is done with/\/* and is done with/ },
    'trace.6' => sub { s/(__syncthreads\(\); \/\* and is done with)/if (threadIdx.x != 0) $1/ },
    'hopper.1' => sub { s/mbarrier_wait\(&shared\.full, 0\);// }, 'hopper.2' => sub { s/parity\(n\) \K\^ 1(?=\);)// },
    'hopper.3' => sub { s/offset_mn\(STEP\)/offset(STEP)/ }, 'hopper.4' => sub { s/mbarrier_wait\(&shared\.empty.*// },
    'hopper.5' => sub { s/proxy_fence\(\);// });

# What the machine finds right stands in the solutions, up to that of the exercise: folded in the note, or in solutions.md.
for my $number ($all ? grep { !/03\.4/ } $list =~ /^([a-z0-9_]+\.\d+)  /mg : 'counting.1') {
    my ($line) = $list =~ /^\Q$number\E  (.*)/m;
    next if $line =~ /^(fill in|write)/ || $number =~ /^(tuning\.2|trace\.3)$/;    # options; lines of a file that may yet change
    if ($line =~ /^change /) {
        my ($copy) = script('exercise', $number)->{out} =~ m{^(exercises/\S+) is a copy}m;
        is(script('exercise', $number, 1)->{code}, 1, "$number: nothing is changed yet");
        local $_ = read_text($copy);
        ok($changes{$number}->(), "$number: the line to change is there");
        write_text($copy, $_);
    }
    $run = script('exercise', '--solve', $number);
    chomp $run->{out};
    my ($name, $item) = $number =~ /(.*)\.(\d+)/;
    my ($note) = $name =~ /^\d/ ? glob "notes/${name}_*.md" : "notes/$name.md";
    my ($page) = $note =~ /(\w+)\.md/;
    my ($solutions) = read_text($note) =~ /<summary>Solutions<\/summary>(.*)<\/details>/s;
    ($solutions) = read_text('notes/solutions.md') =~ /^## $page\n(.*?)(?=^## |\z)/sm if !$solutions;
    $solutions =~ s/^@{[$item + 1]}\. .*//sm;
    my @missing = grep { !stands_in($_, $solutions) } split /,/, $run->{out};
    ok($run->{code} == 0 && length $run->{out} && !@missing, "$number: $run->{out} stands in the note") or diag("missing: @missing $run->{err}");
    like(script('exercise', $number, $run->{out})->{out}, qr/^right\n  Because: /, "$number: and is right");
}

# ---- bugs: those that mutations_kernels.t plants
my @mutations = read_text('tests/mutations_kernels.txt') =~ /^(\d\d)_\w+ \S+ (\S+: .*)/mg;
my (@planted, %count);
while (my ($stage, $mistake) = splice @mutations, 0, 2) {
    push @planted, "$stage." . ++$count{$stage} . " $mistake";
}
$list = script('bug')->{out};
is_deeply([map { /^(\S+) +(\S+) +(.*)/ && "$1 $2: $3" } grep { /^\d/ } split /\n/, $list], \@planted, 'bug lists every mistake of the tests');
is(() = script('bug', '04')->{out} =~ /^04\./mg, $count{'04'}, 'bug 04: those of a stage');
$run = script('bug', '00.99');
like("$run->{code} $run->{out}$run->{err}", qr/^2 bug: N=00.99: there is no such bug.*\n\z/, 'no such bug');
if ($all) {
    my ($mask) = $list =~ /^(\S+) +00_naive\/naive\.cu +mask off by one$/m;
    $run = script('bug', $mask);
    like("$run->{code} $run->{out}", qr/^0 \Q$mask\E  00_naive\/naive\.cu: mask off by one
@@ -\d+ \+\d+ @@
-.*column < visible_keys\(.*
\+.*column <= visible_keys\(.*
What will you see: .*PASS .*
Caught, though not with its usual options: right for .*, wrong for 64 queries and 64 keys, causal\.
    O\[/s, 'a bug is shown, run, and seen') or diag($run->{out}, $run->{err});
    my ($sum) = $list =~ /^(\S+) +01_tiled\/mma\.cu +last key tile skipped$/m;
    like(script('bug', $sum)->{out}, qr/\nFAIL .*\n\nCaught: wrong for one query and one key\.\n/s, 'a bug that the usual options show');
    my ($tail) = $list =~ /^(\S+) +00_naive\/naive\.cu +tail elements written past the end$/m;
    like(script('bug', $tail)->{out}, qr/wrong for one query and one key\.
    kernel naive_output<T>, block \(0,0,0\), thread 128: 0x\w+ is in no tensor; .*
  See it again: /, 'a bug that ends the program');
    is(read_text('00_naive/naive.cu'), $naive, 'and the tree is as it was');
    { # one that is not shown
        local $ENV{BLIND} = 1;
        $run = script('bug', $mask);
        my ($copy) = $run->{out} =~ /^\Q$mask\E  There is a mistake somewhere in (exercises\S+)\. right for .*, wrong for 64 queries and 64 keys, causal\.\n/;
        ok($copy && -e $copy, 'a blind bug: a copy, and how it fails') or diag($run->{out}, $run->{err});
        unlike($run->{out}, qr/off by one|<=/, '... and not the mistake');
        shows_it_again($run->{out});
        my ($line) = grep { ((split /\n/, read_text($copy))[$_ - 1] // '') =~ /column <= visible_keys/ } 1 .. 200;
        like(script('bug', $mask, $line)->{out}, qr/^right: line $line is where/, '... the line is found');
        is(script('bug', $mask, $line + 1)->{code}, 1, '... and the next one is not it');
        like(script('bug', $mask)->{out}, qr/^not yet: right for .*, wrong for 64/, '... not yet cured');
        write_text($copy, $naive);
        like(script('bug', $mask)->{out}, qr/^right: no check finds anything in \Q$copy\E now\. The mistake was: mask off by one$/m, '... cured');
    }
    { # two at once
        my @both = map { open my $from, '-|', "sh common/classroom/bug.sh $_ 2>&1 </dev/null"; $from } $mask, $tail;
        my @said = map { my $from = $_; join '', <$from> } @both;
        like($said[0], qr/^Caught.*wrong for 64 queries and 64 keys, causal\./m, 'a bug beside another') or diag($said[0]);
        like($said[1], qr/^Caught.*is in no tensor.*See it again/ms, 'and that other') or diag($said[1]);
        isnt(($said[0] =~ /See it again: (\S+)/)[0], ($said[1] =~ /See it again: (\S+)/)[0], 'each in a copy of its own');
        is_deeply([glob "$build-scratch/*.busy"], [], 'which is free afterwards');
    }
    shows_it_again(script('bug', $_)->{out}) for $list =~ /^(\S+) +02_online_softmax\/fma\.cu +/mg; # of which the grid alone sees some
}
chdir $root;

done_testing;

# The command that is to show a mistake again: it does.
sub shows_it_again {
    my ($command) = $_[0] =~ /^  See it again: (.*)/m or return ok(0, 'a command shows it again');
    my $said = `timeout 300 env $command 2>&1 </dev/null`;
    isnt($?, 0, "See it again: $command") or diag($said);
}
# Whether a number stands in a text: whole, or to three digits or to two, as 4.0 · 10⁻⁴, too; a word.
sub stands_in {
    my ($number, $text) = @_;
    $text =~ s/(?<=\d),(?=\d{3}\b)//g; # 344,064
    return $text =~ /\b\Q$number\E\b/i if $number !~ /\./;
    my ($digits, $power) = sprintf('%.1e', $number) =~ /(.*)e[+-]0?(\d+)/;
    my $short = join '|', map { quotemeta sprintf $_, $number } '%.4g', '%.3g', '%.2g';
    return $text =~ /$short|\Q$digits\E\W+10\W/;
}
# How many variants a stage has; 00_naive is its own.
sub variants_of { return $_[0] =~ /^00/ ? 1 : scalar(() = `$build/$_[0]/$_[0] --help` =~ /^variants\n(.*)^  00_naive/ms && $1 =~ /\n/g) }
# "variant length mask" of each row of a sweep, in order
sub keys_of { return keys_of_text(read_text($_[0])) }
sub keys_of_text {
    my ($text) = @_;
    my (undef, @rows) = map { [split /,/] } split /\n/, $text;
    return join '; ', sort map { "$_->[1] $_->[2] $_->[8] $_->[11]" } @rows;
}
# A sweep's note at each length.
sub notes_of { return map { my @cell = split /,/, $_, 30; $cell[8] => $cell[29] } grep { /,08/ } split /\n/, read_text($csv) }
sub open_braces { my $text = read_text($_[0]); return ($text =~ tr/{//) - ($text =~ tr/}//) }
