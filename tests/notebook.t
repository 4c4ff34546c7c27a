#!/usr/bin/env perl
# notebook.t - the cells of notes/setup.md for a cloud notebook, run one after the other as they stand there, but on the CPU device, at
# shorter lengths, and with a copy of this tree for `git clone`. What this tree has built serves the copy, too.
use strict;
use warnings;
use Cwd qw(getcwd);
use File::Temp qw(tempdir);
use Test::More;

plan skip_all => 'make test-all runs the cells' if !$ENV{TEST_ALL};
open my $note, '<:utf8', 'notes/setup.md' or die "notes/setup.md: $!";
my ($text) = do { local $/; <$note> } =~ /^```notebook\n(.*?)^```$/ms;
my @cells = split /\n\n+/, $text // '';
is(scalar @cells, 5, 'setup.md: five cells');
my $root = getcwd;
my $scratch = tempdir(CLEANUP => 1);
delete @ENV{qw(TRACE OUT MAKEFLAGS MAKELEVEL TEST_BUILD)};
$ENV{DEVICE} = 'cpu';
chomp($ENV{COMMIT} //= `git --git-dir=.git describe --always --dirty 2>/dev/null` || 'unknown');
mkdir "$scratch/bin";
open my $git, '>', "$scratch/bin/git" or die "$scratch/bin/git: $!"; # `git clone ADDRESS FOLDER`
print $git "#!/bin/sh\n[ \"\$1 \$2\" = 'clone somewhere' ] || exit 1\nmkdir \"\$3\" && cd '$root' &&\n",
    "cp -a Makefile README.md [0-9]*_* common notes tests \"\$OLDPWD/\$3\" && ln -s '$root/build' \"\$OLDPWD/\$3/build\"\n";
close $git;
chmod 0755, "$scratch/bin/git";
$ENV{PATH} = "$scratch/bin:$ENV{PATH}";
chdir $scratch or die "$scratch: $!";

my @shorter = (['--batch 1 --seqlen 2048"', '--seqlen 32 --iters 1" DECODE_OPTIONS="--seqlen-k 64 --iters 1"'],
    ['make trace', 'make trace TRACE_OPTIONS="--heads 1 --seqlen 16"'], ['LENGTHS=512,1024,2048', 'LENGTHS=16 MASKS=full']);
my @says = (undef, qr/^04_fa2\/04_fa2 is built for the CPU device/m, qr/^PASS  \d+ variants agree with 00_naive\n\z/m,
    qr/^07_flash_decoding\/split_k +\d.*0\n/m, qr/sweep\.csv: \d+ rows\n/);
for my $i (0 .. $#cells) {
    my $cell = $cells[$i];
    for (@shorter) {
        my ($long, $short) = @$_;
        $cell =~ s/\Q$long\E/$short/ and $_->[2]++;
    }
    $cell =~ s/ && make plots// and diag('no plots: matplotlib is not here') if system("python3 -c 'import matplotlib' 2>/dev/null") != 0;
    my ($out, $failed) = ('', 0);
    for my $line (split /\n/, $cell) {
        if ($line =~ /^%cd (.+)/) {
            $failed ||= !chdir $1;
        } else {
            $line =~ s/^!// or fail("$line: is no command");
            $line =~ s/<address of this repository>/somewhere/;
            $out .= `( $line ) 2>&1 </dev/null`;
            $failed ||= $?;
        }
    }
    ok(!$failed, 'cell ' . ($i + 1) . ": $cell") or diag($out);
    like($out, $says[$i], 'and it shows what it should') if $says[$i];
    my @long = grep { length > 120 } split /\n/, $out;
    ok(!@long, 'in lines of at most 120 places') or diag(@long);
}
is(scalar(grep { $_->[2] } @shorter), 3, 'the lengths are those that this test shortens');
chdir '/';
done_testing;
