#!/usr/bin/env perl
# notes.t - README.md and the notes say what is so: their figures are those of the result files, their links and anchors lead
# somewhere, the index knows every note, the code they print is in the tree, and the commands they print run.
#
# In a ```sh block each line is run, and so is what stands in `backquotes` and begins with make or a stage's program, and what a kernel's first
# comment says about running it. The programs are those built last; `make test` asks them only whether they know the options
# (--help), `make test-all` lets them do what the page says. `make` is asked only whether it knows the way (make -n): some of its
# targets take minutes, and this test is part of one of them. A block for a GPU begins with ```sh gpu; one for a GPU whose counters
# may be read, which is not run, with ```sh ncu.
use strict;
use warnings;
use utf8;
use Test::More;
use File::Find qw(find);
use File::Temp qw(tempdir);
use lib 'tests';
use Program qw(stages new_stages of_the_host);
of_the_host();

my @pages = ('README.md', sort glob('notes/*.md notes/results/*/README.md'));
my %text = map { $_ => read_text($_) } @pages;

# ---- figures ----
gives(0, 'perl common/results/tables.pl --check', 'figures are those of the result files (without --check it rewrites them)');
# Markdown would take the rest of such a line for HTML.
ok($text{$_} !~ /^\s*<!-- value/m, "$_: no line begins with a figure's comment") for @pages;

# The check itself, in a copy: it sees a figure that has changed, and what it asks for is then what is there.
my $copy = tempdir(CLEANUP => 1);
system("cp -RL README.md notes common '$copy'") == 0 or BAIL_OUT("cannot copy the notes to $copy");
my $ladder = "$copy/notes/results/nvidia-h200/ladder.jsonl";
my $changed = read_text($ladder) =~ s/("variant": "03_fa1\/fa1".*?"latency_ms": )/${1}1/r;
write_text($ladder, $changed);
gives(1, "cd '$copy' && perl common/results/tables.pl --check", 'a figure that has changed is noticed');
if ($ENV{TEST_ALL}) {
    gives(0, "cd '$copy' && perl common/results/tables.pl", 'and rewritten');
    gives(0, "cd '$copy' && perl common/results/tables.pl --check", 'after which all is well');
}

# A figure that a result file has must come from there: typed beside it, it would stay when the file changes.
my %measured;
for my $page (@pages) {
    $measured{$_}++ for map { figures($_) } $text{$page} =~ /<!-- (?:table|value): .*? -->(.*?)<!-- end -->/sg;
}
cmp_ok(keys %measured, '>', 50, 'there are measured figures to look for');
is_deeply([figures('in 6.63 ms, not 6 ms: 351 TFLOP/s')], ['6.63 ms', '351 TFLOP/s'], 'and they are seen in a sentence');
for my $page (@pages) {
    my @typed = grep { $measured{$_} } figures($text{$page} =~ s/<!-- (?:table|value|text): .*?<!-- end -->//sgr);
    ok(!@typed, "$page: no measured figure is typed") or diag("stands in a result file, use <!-- value: ... -->: @typed");
}

# A variant with a pre-pass stands in the ladder with it, and the ladder says so.
my @with = grep { /^\S+\t06_fp8\// } split /\n/, read_text('common/results/ladder.tsv');
is(scalar(grep { /\t06_fp8\/quantise\+\w+\t/ } @with), 3, 'the ladder has 06 with its pre-pass');
like($with[0], qr/with its pre-pass/, 'and says so');

# ---- links ----
for my $page (@pages) {
    my $folder = $page =~ s/[^\/]*$//r;
    my @dead;
    for my $link (without_code($text{$page}) =~ /\]\(([^)]+)\)/g) {
        next if $link =~ /^https?:/;
        my ($file, $anchor) = split /#/, $link, 2;
        my $target = $file eq '' ? $page : $folder . $file;
        1 while $target =~ s/[^\/]+\/\.\.\///; # a/../b is b, and must not depend on a
        my $alive = -e $target && (!defined $anchor || grep { $_ eq $anchor } anchors($target));
        push @dead, $link if !$alive;
    }
    ok(!@dead, "$page: links") or diag("leads nowhere: @dead");
}

my %is_new = map { ("$_.md" => 1) } new_stages();
for my $note (grep { !$is_new{$_} } map { s/^notes\///r } grep { /^notes\/[^\/]+\.md$/ && !/README/ } @pages) {
    like($text{'notes/README.md'}, qr/\]\(\Q$note\E[)#]/, "notes/README.md leads to $note");
}

# ---- nothing that a first reader reads is folded away ----
for my $page ('README.md', map { "notes/$_.md" } qw(00_naive 01_tiled 02_online_softmax 03_fa1 04_fa2 04_fa2_tensor_cores 05_fa2_backward 05_fa2_backward_tensor_cores 06_fp8 06_fp8_hopper 07_flash_decoding 08_fa3)) {
    unlike($text{$page}, qr/<details>/, "$page: nothing is folded");
}

# ---- code ----
my (@sources, %source_line);
find({no_chdir => 1, wanted => sub { push @sources, $_ if /\.(c|h|cu|cuh)$/ }}, 'common', 'notes/hopper', stages());
$source_line{trimmed($_)} = 1 for map { split /\n/, read_text($_) } @sources;
for my $page (@pages) {
    my @gone = grep { $_ ne '' && !$source_line{$_} } map { trimmed($_) } map { split /\n/ } blocks($text{$page}, 'cuda');
    ok(!@gone, "$page: code") or diag(map { "no longer in the tree: $_\n" } @gone);
}

# ---- commands ----
my %run;
for my $page ($ENV{TEST_ALL} ? @pages : 'README.md') {
    my @blocks = (blocks($text{$page}, 'sh'), ($ENV{TEST_DEVICE} // '') eq 'cuda' ? blocks($text{$page}, 'sh gpu') : ());
    my @quoted = $text{$page} =~ s/^```.*?^```$//msgr =~ /`((?:make [\w-]|\.\/\d+_)[^`]*)`/g;
    # Not a GPU's, nor those with something to fill in.
    my @whole = $page =~ /results/ ? () : grep { !/\.\.|<|DIR|DEVICE=cuda|built for/ } @quoted;
    runs($page, (map { split /\n/ } @blocks), @whole);
}
runs($_, read_text($_) =~ /^ \*     (make \d.*)/mg) for grep { $ENV{TEST_ALL} && /\.cu$/ } @sources; # how to run a kernel, at the top of its file
done_testing();

# Each of these commands runs, as far as no other page has printed it; of make's a target once, whatever is said in capitals besides
# the device. The trace needs g++.
sub runs {
    my ($page, @lines) = @_;
    s/ && /&&/g for grep { /^cd / } @lines; # these are not taken apart
    @lines = grep { !/make.*trace/ } @lines if `g++ --version 2>&1` !~ /Free Software/;
    for my $line (grep { /^\w|^\.\// && !$run{/^make / ? s/ (?!DEVICE)[A-Z_]+=("[^"]*"|\S+)//gr : $_}++ } map { split / && / } map { s/ +#.*//r } @lines) {
        my $asked = $line =~ /^(?:\w+=\S* )*\.\/\d/ && !$ENV{TEST_ALL} ? "$line --help" : $line;
        write_text("$copy/line.sh", "make() { command make --no-print-directory -n \"\$@\" >/dev/null; }\n$asked\n");
        gives(0, "bash '$copy/line.sh'", "$page: $line");
    }
}

# Whether a command ends with this exit code; if not, what it said.
sub gives {
    my ($code, $command, $name) = @_;
    my $said = `( $command ) 2>&1 </dev/null`;
    is($? >> 8, $code, $name) or diag($said);
}

# Figures of three digits with a unit. Shorter ones are predictions and round numbers.
sub figures { return grep { tr/0-9// >= 3 } $_[0] =~ /(?<![\d.])\d[\d.]* (?:ms|us|TFLOP\/s|GB\/s)/g }

# The fenced blocks of a page that begin with ``` and `info`.
sub blocks {
    my ($text, $info) = @_;
    return $text =~ /^```\Q$info\E\n(.*?)^```$/msg;
}

sub without_code { return $_[0] =~ s/^```.*?^```$//msgr =~ s/^    .*$//mgr =~ s/`[^`\n]*`//gr }

# A page's anchors, as GitHub names them: headings in lower case, punctuation left out, spaces as hyphens.
sub anchors {
    my ($page) = @_;
    return map { lc =~ s/[^\w\- ]//gr =~ s/ /-/gr } read_text($page) =~ s/^```.*?^```$//msgr =~ /^#+ (.*?)\s*$/mg;
}

sub trimmed { return $_[0] =~ s/^\s+|\s+$//gr }
sub read_text { open my $in, '<:utf8', $_[0] or die "$_[0]: $!"; local $/; return <$in> }
sub write_text { open my $out, '>:utf8', $_[0] or die "$_[0]: $!"; print $out $_[1]; close $out or die "$_[0]: $!" }
