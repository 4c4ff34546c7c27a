# Exercises of notes/07_flash_decoding.md.
exercise '07.4',
    ask => 'the partial result part[a][i] and its lse[a][i], in powers of two, merged into m[i], l[i] and o[i]',
    variant => 'split_k',
    blank => {file => '07_flash_decoding/split_k.cu', from => 'const float m_new = fmaxf(m[i], lse[a][i]);',
              to => 'o[i].z = factor * o[i].z + weight * part[a][i].z'};
