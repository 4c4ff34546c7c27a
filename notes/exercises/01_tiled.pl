# Exercises of notes/01_tiled.md.
sub share_of_scores { # percent of the bytes of Q, K, V, S and P
    my @rows = @_;
    my @both = ('bytes_read', 'bytes_written');
    my $scores = sum_of({tensor => '[SP]'}, \@both, @rows);
    return 100 * $scores / ($scores + sum_of({tensor => '[QKV]'}, \@both, @rows));
}

exercise '01.1',
    ask => 'the share of S and P of the bytes, in percent, at D = 128 and at D = 64',
    within => 0.005,
    answer => sub {
        my ($trace) = @_;
        return map { share_of_scores($trace->("--variant mma --heads 1 --seqlen 256 --head-dim $_")) } 128, 64;
    };

exercise '01.2',
    copy => '01_tiled/fma.cu', change => 'PITCH = SLICE', changed => qr/constexpr int PITCH = SLICE;/,
    ask => 'the wavefronts that a read of the right-hand tile takes',
    answer => sub {
        my ($trace) = @_;
        my @worst = $trace->('--variant fma --heads 1 --seqlen 64', 'text') =~ /bank conflicts; worst:.*\((\S+) for 1\)/g;
        return (sort { $b <=> $a } @worst)[0] // 1;
    };

exercise '01.3',
    ask => 'with tiles of 128 x 128, the percentage of the bytes of Q, K, V, S and P that are still moved, at D = 128',
    within => 0.005,
    answer => sub {
        my ($trace) = @_;
        my $scores = share_of_scores($trace->('--variant mma --heads 1 --seqlen 256 --head-dim 128'));
        return $scores + (100 - $scores) / 2;
    };

exercise '01.4',
    ask => "S = Q K^T of the warp's 16 rows and the tile's keys, as fragments, in c",
    variant => 'mma',
    blank => {file => '01_tiled/mma.cu',
              from => "#pragma unroll\n    for (int d = 0; d < D / 16; d++) {\n        uint32_t a[4];\n        load_a_fragment(a, shared.q",
              to => "b[2], b[3]);\n        }\n    }"};
